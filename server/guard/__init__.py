"""The guard: what a host is about to do itself, judged by the operator's rules and asked about in the same inbox.

A host's hook asks before each call, as a command (`planwarden guard hook HOST`) or over MCP. `calls` reads what hosts
send and writes the answers that they expect; `guard` and `judging` judge, and a model is always refused what
`protected_paths` finds. `hook_files` says what changes in a host's files: only planwarden's own lines. No answer here
proves that something happened: only plans prove.
"""
