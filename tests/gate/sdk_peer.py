"""A server on the SDK, over standard input and output or at a port, for hosts of both eras."""

import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("sdk peer", version="3", instructions="Its own words.", log_level="ERROR")
FOLDER = Path(sys.argv[1])


class Answer(BaseModel):
    x: int


@server.tool()
async def look(q: int, ctx: Context) -> str:
    await ctx.report_progress(1, 2, "half")
    return f"saw {q}"


@server.tool()
def write(text: str, suffix: str = "!") -> str:
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(f'"{text}"\n')
    return f"wrote {text}{suffix}"


@server.tool()
async def ask(ctx: Context) -> str:
    return str(await ctx.elicit("Which?", Answer))


@server.resource("note://{name}")
def note(name: str) -> str:
    return f"note {name}"


@server.prompt()
def greet() -> str:
    return "hello"


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
