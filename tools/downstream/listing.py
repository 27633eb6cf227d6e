"""Reads `tools/list` of a downstream server, within limits."""

from typing import TYPE_CHECKING

from pydantic import JsonValue

from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import ToolError
from planwarden.agent.common.imports import LazyModule

if TYPE_CHECKING:
    import mcp
else:
    mcp = LazyModule("mcp")

MAX_TOOLS = 1_000
MAX_PAGES = 100
MAX_LISTING_BYTES = 6 * 1024 * 1024


async def read_listing(client: "mcp.Client") -> tuple[list[JsonValue], str | None]:
    """Returns the server's tools as it lists them, and a note about what is missing from them.

    Raises:
        ToolError: the listing is larger than `MAX_LISTING_BYTES`.
    """
    if client.server_capabilities.tools is None:
        return [], "it offers no tools"
    found, note = await _read_pages(client)
    if is_larger(found, MAX_LISTING_BYTES):
        raise ToolError(f"its listing is larger than {MAX_LISTING_BYTES} bytes")
    return found, note


async def _read_pages(client: "mcp.Client") -> tuple[list[JsonValue], str | None]:

    found: list[JsonValue] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await client.session.list_tools(params=mcp.types.PaginatedRequestParams(cursor=cursor))
        for tool in page.tools[: MAX_TOOLS - len(found)]:
            found.append(tool.model_dump(mode="json", by_alias=True, exclude_none=True))
        if len(page.tools) > MAX_TOOLS or (len(found) >= MAX_TOOLS and page.next_cursor is not None):
            return found, f"it lists more than {MAX_TOOLS} tools; the others are left out"
        cursor = page.next_cursor
        if cursor is None:
            return found, None
        if cursor in seen:
            return found, "its listing returns to a page that it sent before"
        seen.add(cursor)
    return found, f"its listing has more than {MAX_PAGES} pages; the others are left out"
