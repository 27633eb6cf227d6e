"""The running engine: it owns a process's executions, turns decisions into transactions, performs calls and prompts.

Calls go downward: `engine -> run -> transaction_builder -> dispatch`, and `perform` after the commit. `dispatch` calls
the functions of `approval`, which never call back.
"""
