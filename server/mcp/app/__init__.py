"""The question to a person as an MCP App: a view that hosts draw."""
