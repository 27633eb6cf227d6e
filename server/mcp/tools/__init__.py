"""The tools of the MCP surface, which docs/reference/mcp.md lists: each beside its handler, with a file per subject.

A handler takes arguments that fit the tool's schema, calls `Service` and turns the view that it returns into a result.
Arguments never approve anything: what the calling model sends has the assurance `claimed`, and a person's answer to a
form has `client`. The service and the store decide which answer counts.
"""
