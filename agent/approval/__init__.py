"""Who may decide what: questions to people, answers to them, and standing grants.

Functions over an `ApprovalContext` that return events; `runtime` commits them. `ruling` takes a decision, `authorize`
says whether a call may run, and `questions` writes what a person is asked. Nothing here reads the store.
"""
