"""A downstream server made with the SDK, which speaks 2026-07-28 and tells its listeners when it has another tool."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("growing", log_level="ERROR")


@server.tool()
async def grow(context: Context) -> str:
    """Have one tool more from now on."""

    def grown() -> str:
        """What was not there before."""
        return "grown"

    server.add_tool(grown)
    await context.notify_tools_changed()
    return "grew"


if __name__ == "__main__":
    server.run("stdio")
