"""MCP: the tools, resources and prompts that clients see, and the questions that they put to their person.

A call goes `server` -> an `McpTool` in `tools/` and the function beside it -> `Service`. `elicitation` asks the
client's person. `tasks/`, `subscriptions/` and `app` are extensions of the protocol.
"""
