"""Downstream MCP servers: their configuration, connections, transports, listings, calls and questions.

`login/` holds OAuth logins. What a server says is hostile input and is bounded here.
"""
