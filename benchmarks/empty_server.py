"""The smallest MCP server: it shows what every server made with this SDK imports before it can answer."""

from mcp.server import MCPServer

if __name__ == "__main__":
    MCPServer("empty").run("stdio")
