"""The MCP App: a view of the open questions to a person, which hosts draw."""
