"""The pure core: plans, events, the state folded from them, and what follows from that state.

Every function here depends on its arguments alone and is synchronous: no clock, no ids, no I/O. Time and ids come in as
arguments. Code that asks a store, a tool or a policy belongs to `approval` or `runtime`.
"""
