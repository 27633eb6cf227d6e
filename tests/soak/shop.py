"""A downstream server over standard input and output, made with the SDK, with a ledger outside of planwarden.

Run it as `python -m tests.soak.shop LEDGER`.
"""

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

LEDGER = Path(sys.argv[1])
READS = ToolAnnotations(read_only_hint=True)
REPORT_LINES = 4_000
"""Makes a result of about 400 KB, which is too large for the log."""

server = MCPServer("shop", log_level="ERROR")


@server.tool(annotations=READS)
def look(article: str) -> dict[str, object]:
    """Look at an article."""
    return {"article": article, "price": 12, "inStock": True}


@server.tool()
def order(note: str) -> str:
    """Order something, once for each call."""
    with LEDGER.open("a", encoding="utf-8") as file:
        file.write(f"{note}\n")
    return "ordered"


@server.tool(annotations=READS)
def report(note: str) -> dict[str, object]:
    """Everything that was ever sold."""
    return {
        "lines": [
            f"{number}: {note} sold, and nobody knows to whom or why; {'-' * 40}" for number in range(REPORT_LINES)
        ]
    }


@server.tool(annotations=READS)
async def browse(seconds: float) -> str:
    """Look around for a while."""
    await anyio.sleep(seconds)
    return "nice things"


@server.tool(annotations=READS)
def collapse() -> str:
    """End the server in the middle of the call."""
    os._exit(3)


if __name__ == "__main__":
    server.run("stdio")
