"""What each MCP tool does: one handler a tool, from arguments that fit the tool's schema to a result.

A handler calls `Service` and turns the view that it returns into a result. Arguments never approve anything: what the
calling model sends has the assurance `claimed`, and a person's answer to a form has `client`. The service and the store
decide which answer counts.
"""
