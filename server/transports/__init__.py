"""How MCP reaches this process: stdio, or Streamable HTTP together with the inbox."""
