"""The pure core: plans, events, the state folded from them, and what follows from that state.

Every function here is a function of its arguments: no clock, no ids, no I/O, no `await`. Time and ids come in as
arguments. What has to ask a store, a tool or a policy belongs to `approval` or `runtime`.
"""
