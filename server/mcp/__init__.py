"""MCP: the tools, resources and prompts that clients see, and the questions that they put to their person.

A call goes `server` -> `McpTool` in `tools` -> a function in `handlers/` -> `Service`. `elicitation/` asks the client's
person. `tasks/`, `subscriptions/` and `app/` are extensions of the protocol.
"""
