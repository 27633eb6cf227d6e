"""The real hosts under the guard: their models want to run commands, and planwarden says whether they run.

Facts come from a ledger that the commands write, from planwarden's own record, and from what the model of the host was
told, never from what a host says about itself.
"""
