"""MCP: the tools, resources and prompts that clients see, and the questions that clients put to a person.

A call goes `server` -> an `McpTool` in `tools/` and the function beside it -> `Service`. `elicitation` asks the
person at the client. `tasks`, `subscriptions/` and `app` are extensions of the protocol.
"""
