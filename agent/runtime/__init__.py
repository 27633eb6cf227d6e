"""The running engine: it turns decisions into transactions, performs calls and prompts, owns a process's executions.

A call reads downward: `engine -> run -> transaction_builder -> dispatch`, and after the commit `perform`. `dispatch`
asks the functions of `approval`; nothing there calls back.
"""
