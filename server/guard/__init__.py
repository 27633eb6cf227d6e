"""The guard: what a host is about to do itself, judged by the operator's rules and asked about in the same inbox.

A host's hook asks before each call, as a command (`planwarden guard hook HOST`) or over MCP (`listener`).
`calls` reads what hosts send and writes what they want to hear; `guard` and `judging` judge, and what
`protected_paths` finds is always refused to a model. `install/` changes a host's files. No answer here proves that
something happened: only plans prove.
"""
