"""Subscriptions of MCP clients in both eras of the protocol, and the topics that they watch."""
