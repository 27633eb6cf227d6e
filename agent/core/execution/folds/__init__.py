"""What each event changes in the state, one module for each subject; `fold` has the table of their functions.

A function takes the execution, the event and when it happened, and returns the fields that change. If the event cannot
follow, it raises `IllegalTransition`. What several subjects need is in `transitions`.
"""
