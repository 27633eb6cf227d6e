"""The guard: what a host is about to do itself, judged by the operator's rules and asked about in the same inbox.

A host's hook asks before each call, as a command (`planwarden guard hook HOST`) or through the MCP tool `guard_call`.
Here live what hosts send and want to hear (`calls`, `answers`, `hosts`), the judgement (`guard`, `judging`, `passes`),
and what is refused to a model always (`own_things`, `shell`). What changes a host's files is in `install/`. No answer
here proves that something happened: only plans prove.
"""
