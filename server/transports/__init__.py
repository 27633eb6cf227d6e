"""The transports of MCP: stdio, or Streamable HTTP together with the inbox."""
