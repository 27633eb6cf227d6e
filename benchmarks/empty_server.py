"""The smallest MCP server there is: what any server made with this SDK has to import before it can answer."""

from mcp.server import MCPServer

if __name__ == "__main__":
    MCPServer("empty").run("stdio")
