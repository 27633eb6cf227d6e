"""MCP: the tools, resources, prompts and tasks that clients see, and the questions that they are asked."""
