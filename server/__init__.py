"""The edge: the Python API, the MCP server, the command line, policy and configuration."""
