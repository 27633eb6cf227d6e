"""The running engine: it turns decisions into transactions, performs calls and prompts, and owns the executions of a process.

A call reads downward: `engine -> run -> transaction -> dispatch`, and after the commit `perform`.
"""
