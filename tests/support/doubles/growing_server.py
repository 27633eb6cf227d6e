"""A downstream server made with the SDK, which speaks 2026-07-28 and notifies its listeners when it gets a new tool."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("growing", log_level="ERROR")


@server.tool()
async def grow(context: Context) -> str:
    """Add one tool."""

    def grown() -> str:
        """The added tool."""
        return "grown"

    server.add_tool(grown)
    await context.notify_tools_changed()
    return "grew"


if __name__ == "__main__":
    server.run("stdio")
