"""The tools of the wrapped server, as tools of the catalogue whose calls go through the relay.

They are listed again before every call that planwarden makes, so that a changed definition is noticed at the last
moment, also where the server does not announce changes.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec.structs import replace

from planwarden.agent.common.canonical import digest, is_larger
from planwarden.agent.common.errors import OutcomeUnknown, StaleDefinition, ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.server.gate.relay import RefusedRequest, Relay
from planwarden.tools.base import Tool, define
from planwarden.tools.downstream.listing_cache import MAX_LISTING_BYTES, MAX_PAGES, MAX_TOOLS, save_listing
from planwarden.tools.downstream.results import read_whole_result
from planwarden.tools.downstream.servers import FOLDER
from planwarden.tools.downstream.tools import DownstreamTool, build_tools
from planwarden.tools.registry import Registry

IDEMPOTENCY_KEY = "planwarden/idempotencyKey"


class GatedTools:
    """The tools of one wrapped server."""

    def __init__(
        self,
        relay: Relay,
        registry: Registry,
        apply_settings: Callable[[ToolDefinition], ToolDefinition],
        home: Path,
        on_listing: Callable[[str], Awaitable[None]],
    ) -> None:
        """`on_listing` gets the digest of each new listing, which the home has then."""
        self._on_listing = on_listing
        self._relay = relay
        self._registry = registry
        self._apply_settings = apply_settings
        self._home = home
        self._tools: dict[str, DownstreamTool] = {}
        """By the server's own names."""
        self._listing: list[JsonValue] = []
        self._is_listed = False
        self._lock = anyio.Lock()

    def note_change(self) -> None:
        """The server says that its tools changed: list them at the next call."""
        self._is_listed = False

    async def find(self, remote_name: str) -> DownstreamTool | None:
        """Return the tool that the server calls so; None if it lists none. Raises `ToolError`: it cannot be asked."""
        if not self._is_listed or remote_name not in self._tools:
            await self.read()
        return self._tools.get(remote_name)

    def find_by_name(self, name: str) -> DownstreamTool | None:
        """Return the tool that the catalogue calls so."""
        return next((tool for tool in self._tools.values() if tool.definition.name == name), None)

    async def read(self) -> None:
        """List the tools. Raises `ToolError`: the server cannot be asked, or its listing is too large."""
        async with self._lock:
            self._is_listed = True
            try:
                listing = await self._read_pages()
            except BaseException:
                self._is_listed = False
                raise
            if listing == self._listing and self._tools:
                return
            config = self._relay.config
            tools, _ = await anyio.to_thread.run_sync(lambda: build_tools(config, listing, other_tools=()))
            self._tools = {
                tool.remote_name: replace(tool, definition=define(self._apply_settings(tool.definition)))
                for tool in tools
            }
            self._registry.replace_group(config.name, map(self._build_tool, self._tools.values()))
            self._listing = listing
            await anyio.to_thread.run_sync(save_listing, self._home / FOLDER, config, listing)
            await self._on_listing(digest(listing))

    async def _read_pages(self) -> list[JsonValue]:
        listing: list[JsonValue] = []
        params: dict[str, JsonValue] = {}
        for _ in range(MAX_PAGES):
            page = await self._relay.request("tools/list", params)
            entries, cursor = page.get("tools"), page.get("nextCursor")
            if not isinstance(entries, list):
                raise ToolError(f"server {self._relay.config.name!r} answered tools/list with something else")
            listing += entries[: MAX_TOOLS - len(listing)]
            if not isinstance(cursor, str) or len(listing) >= MAX_TOOLS or params.get("cursor") == cursor:
                break
            params = {"cursor": cursor}
        if is_larger(listing, MAX_LISTING_BYTES):
            raise ToolError(
                f"the listing of server {self._relay.config.name!r} is larger than {MAX_LISTING_BYTES} bytes"
            )
        return listing

    def _build_tool(self, tool: DownstreamTool) -> Tool:
        async def call(arguments: dict[str, JsonValue], context: CallContext) -> JsonValue:
            return await self._call(tool, arguments, context)

        return Tool(tool.definition, call, schema=tool.input)

    async def _call(self, tool: DownstreamTool, arguments: dict[str, JsonValue], context: CallContext) -> JsonValue:
        """Send the call that planwarden decided to make.

        Raises:
            ToolError: the call was not sent, or the server refused it or says that it failed.
            OutcomeUnknown: the call was sent and may have happened.
            StaleDefinition: the server defines it differently now; nothing was sent.
        """
        name = tool.definition.name
        try:
            await self.read()
        except ToolError as error:
            # Nothing of the call was sent, whatever became of the listing.
            raise ToolError(f"{name} was not run: {error.message}", retryable=True) from None
        current = self._registry.get(name)
        if current is None:
            raise ToolError(f"{name} is not offered any more; nothing was sent", retryable=True)
        if current.digest != tool.definition.digest:
            raise StaleDefinition(f"{name} changed before it was called; nothing was sent")
        await context.confirm_lease()
        meta: dict[str, JsonValue] = {IDEMPOTENCY_KEY: context.idempotency_key}
        params: dict[str, JsonValue] = {"name": tool.remote_name, "arguments": arguments, "_meta": meta}
        try:
            return read_whole_result(name, await self._relay.request("tools/call", params))
        except RefusedRequest as error:
            raise ToolError(f"{name} was refused by its server: {error.message}") from None
        except OutcomeUnknown as error:
            raise (error if tool.definition.effect == "effect" else ToolError(error.message)) from None


def name_tool_key(relay: Relay, remote_name: str) -> str:
    """Return what names a tool of the server for as long as its command and its folder are the same."""
    return digest([relay.config.fingerprint, remote_name], context="gated tool/v1")
