"""Downstream MCP servers: their configuration, connections, listings, calls and questions.

`transports/` moves bytes, `login/` holds OAuth logins. What a server says is hostile input and is bounded here.
"""
