"""The guard judges what a host is about to do itself by the operator's rules, and asks people about it in the inbox.

A host's hook asks before each call, as a command (`planwarden guard hook HOST`) or over MCP. `calls` reads what hosts
send and writes the answers that they expect; `guard` and `judging` judge. A call that touches anything in
`protected_paths` is always refused. `hook_files` changes only planwarden's own lines in a host's files. No answer here
proves that something happened: only plans prove.
"""
