"""Reads listings of downstream servers, and caches the last ones: a process knows the tools before it starts a server.

Each server has one file in the home. It counts as outside input: bounded, checked, and ignored when it does not fit. A
wrong or old listing costs one question at most, because a call compares its definition with the server's.
"""

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json, digest, is_larger, read_json
from planwarden.agent.common.errors import PlanwardenError, ToolError
from planwarden.agent.common.imports import LazyModule
from planwarden.tools.downstream.config import ServerConfig

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


logger = logging.getLogger(__name__)

MAX_CACHE_BYTES = 8 * 1024 * 1024
FORM = 1


class ListingCache:
    """Listings by server, in one folder; empty without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, config: ServerConfig) -> list[JsonValue] | None:
        """Returns the tools of the last listing, or None when there is none for this configuration."""
        path = self._path(config)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                data = file.read(MAX_CACHE_BYTES + 1)
            found = read_json(data) if len(data) <= MAX_CACHE_BYTES else None
        except (OSError, PlanwardenError):
            return None
        if not isinstance(found, dict) or found.get("form") != FORM or found.get("server") != config.fingerprint:
            return None
        tools = found.get("tools")
        return tools if isinstance(tools, list) else None

    def save(self, config: ServerConfig, tools: list[JsonValue]) -> None:
        """Store the listing for the next process. Logs a warning when the home cannot be written to."""
        path = self._path(config)
        if path is None or not path.parent.parent.is_dir():
            return
        text = canonical_json({"form": FORM, "server": config.fingerprint, "tools": tools})
        if len(text) > MAX_CACHE_BYTES:
            return
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _replace(path, text)
        except OSError as error:
            logger.warning("cannot keep the listing of server %r in %s: %s", config.name, path, error.strerror)

    def _path(self, config: ServerConfig) -> Path | None:
        return None if self._folder is None else self._folder / f"{file_stem(config)}.json"


def file_stem(config: ServerConfig) -> str:
    """Returns a file name for the server, unique also on file systems that ignore case."""
    return f"{config.slug[:40]}-{digest(config.name)[:8]}"


def _replace(path: Path, text: str) -> None:
    """Replace the file as a whole, because another process may read or write it at the same moment."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
