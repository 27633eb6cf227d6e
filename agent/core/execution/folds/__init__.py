"""What each event changes in the state, one module a subject; `fold` calls them by its table.

A function takes the execution, the event and when it happened, and returns the fields that change. Where the event
cannot follow it raises `IllegalTransition`. What several subjects need is in `transitions`.
"""
