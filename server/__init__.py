"""The edge: the Python API, the MCP server, the inbox, the command line, and everything that they are built from.

Imports point one way, checked: `main -> cli -> transports -> mcp | inbox -> api -> settings -> auth | notifications |
signatures | telemetry -> views`.
"""
