"""The edge: the Python API, the MCP server, the inbox, the command line, and everything that they are built from.

CONTRIBUTING.md has the direction of their imports.
"""
