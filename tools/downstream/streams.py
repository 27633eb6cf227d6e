"""The SDK's streams to a server behind an address, in which every result has a `resultType`.

Since 2026-07-28 every result has one. Servers leave it out, and "clients MUST treat an absent `resultType` as
`complete`" (https://modelcontextprotocol.io/specification/2026-07-28/basic#resulttype). The SDK refuses such a result
when it checks it against the revision's schema, which would give a successful call an unknown outcome.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse

from planwarden.tools.downstream.config import ServerConfig

CONNECT_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 30.0


class _TypedResults:
    """A stream of messages, as the SDK reads it, in which every result has a `resultType`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        item: SessionMessage | Exception = await self._inner.__anext__()
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            item.message.result.setdefault("resultType", "complete")
        return item

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner.__aexit__(*error)


@asynccontextmanager
# The SDK's type of the pair has no public name.
async def connect_streams(
    config: ServerConfig,
    transport: httpx2.AsyncBaseTransport,
    max_event_bytes: int,
    *,
    read_s: float | None,
    is_typed: bool = True,
) -> AsyncGenerator[Any]:
    """Yield the streams to the address of the server; reading may take `read_s` seconds."""
    assert config.url is not None
    timeout = httpx2.Timeout(connect=CONNECT_TIMEOUT_S, read=read_s, write=WRITE_TIMEOUT_S, pool=CONNECT_TIMEOUT_S)
    async with (
        httpx2.AsyncClient(headers=dict(config.headers), timeout=timeout, transport=transport) as client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=max_event_bytes) as (read, write),
    ):
        yield (_TypedResults(read) if is_typed else read), write
