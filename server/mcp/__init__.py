"""MCP: the tools, resources and prompts that clients see, and the questions that they are asked.

`tools` lists the MCP tools, `handlers` answers their calls. `tasks/`, `subscriptions/` and `app/` are extensions.
"""
