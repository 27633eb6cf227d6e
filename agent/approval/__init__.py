"""Who may decide what: questions to people, answers to them, and standing grants.

Functions over an `ApprovalContext` that return events; `runtime` commits them. They call each other downward only:
`ruling -> review -> forecast -> questions -> covering -> arguments`, and `ruling -> revisions -> questions`;
`staleness` and `grants` stand alone. Nothing here imports
`runtime`, reads the store, or holds state, except the cache of open grants.
"""
