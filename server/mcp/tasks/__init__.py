"""The tasks extension of MCP (`io.modelcontextprotocol/tasks`): executions as tasks that a client polls."""
