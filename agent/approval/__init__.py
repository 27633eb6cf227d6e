"""Who may decide what: questions to people, answers to them, and standing grants.

Everything that asks before a call, or judges an answer, is here. It returns events; `runtime` commits them.
"""
