"""MCP servers whose tools plans may call."""
