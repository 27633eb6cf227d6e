"""Reads and caches the tools that servers list, so that a process knows the tools before it starts a server.

Each server has one file in the home, which counts as outside input: limited in size, checked, and ignored if invalid.
A wrong or old listing causes one needless question at most: each call compares the definition with the server's own.
"""

import logging
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue, ValidationError

from planwarden.agent.common.canonical import canonical_json, digest, read_json
from planwarden.agent.common.errors import PlanwardenError, ToolError
from planwarden.agent.common.paths import replace_file
from planwarden.tools.downstream.config import ServerConfig, build_slug
from planwarden.tools.downstream.sdk import mcp

logger = logging.getLogger(__name__)

FOLDER = "downstream"
"""The folder below the home for the listings, logs and logins of servers."""
MAX_TOOLS = 1_000
MAX_PAGES = 100
MAX_LISTING_BYTES = 6 * 1024 * 1024
MAX_CACHE_BYTES = 8 * 1024 * 1024
FORM = 1


async def read_listing(client: "mcp.Client") -> tuple[list[JsonValue], str | None]:
    """Return the tools as the server lists them, and a note if some are missing.

    Raises `ToolError`: the listing is larger than `MAX_LISTING_BYTES`.
    """
    if client.server_capabilities.tools is None:
        return [], "it offers no tools"
    tools: list[JsonValue] = []
    cursor: str | None = None
    cursors: set[str] = set()
    size = 0
    for _ in range(MAX_PAGES):
        page = await client.session.list_tools(params=mcp.types.PaginatedRequestParams(cursor=cursor))
        for tool in page.tools[: MAX_TOOLS - len(tools)]:
            tools.append(tool.model_dump(mode="json", by_alias=True, exclude_none=True))
            size += len(canonical_json(tools[-1]))
            if size > MAX_LISTING_BYTES:
                raise ToolError(f"its listing is larger than {MAX_LISTING_BYTES} bytes")
        if len(page.tools) > MAX_TOOLS or (len(tools) >= MAX_TOOLS and page.next_cursor is not None):
            return tools, f"it lists more than {MAX_TOOLS} tools; the others are left out"
        cursor = page.next_cursor
        if cursor is None:
            return tools, None
        if cursor in cursors:
            return tools, "its listing returns to a page that it sent before"
        cursors.add(cursor)
    return tools, f"its listing has more than {MAX_PAGES} pages; the others are left out"


def normalize_listing(listing: list[JsonValue]) -> list[JsonValue]:
    """Return a gate's listing in the form that `read_listing` returns. A tool that the SDK refuses stays as it is."""
    tools: list[JsonValue] = []
    for entry in listing:
        with suppress(ValidationError):
            tool = mcp.types.Tool.model_validate(entry, by_name=False)
            entry = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
        tools.append(entry)
    return tools


def load_listing(folder: Path, config: ServerConfig) -> list[JsonValue] | None:
    """Return the tools of the last listing, or None if the folder has no listing for this configuration."""
    try:
        with _find_file(folder, config).open("rb") as file:
            data = file.read(MAX_CACHE_BYTES + 1)
        document = read_json(data) if len(data) <= MAX_CACHE_BYTES else None
    except (OSError, PlanwardenError):
        return None
    if not isinstance(document, dict) or (document.get("form"), document.get("server")) != (FORM, config.fingerprint):
        return None
    tools = document.get("tools")
    return tools if isinstance(tools, list) else None


def save_listing(folder: Path, config: ServerConfig, tools: list[JsonValue]) -> None:
    """Store the listing for the next process. Log a warning when the folder cannot be written to."""
    if not folder.parent.is_dir():
        return
    text = canonical_json({"form": FORM, "server": config.fingerprint, "tools": tools})
    if len(text) > MAX_CACHE_BYTES:
        return
    path = _find_file(folder, config)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        logger.warning("cannot keep the listing of server %r in %s: %s", config.name, path, error.strerror)


def _find_file(folder: Path, config: ServerConfig) -> Path:
    return folder / f"{file_stem(config.name)}.json"


def file_stem(server: str) -> str:
    """Return the server's file name without its ending, unique even on file systems that ignore case."""
    return f"{build_slug(server)[:40]}-{digest(server)[:8]}"
