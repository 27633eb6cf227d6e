"""Adds the `resultType` that a server's result lacks, before the SDK validates the result.

Since 2026-07-28 every result has a `resultType`. Servers leave it out, and "clients MUST treat an absent `resultType`
as `complete`" (https://modelcontextprotocol.io/specification/2026-07-28/basic#resulttype). The SDK refuses such a
result when it checks it against the revision's schema, which would give a successful call an unknown outcome.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from types import TracebackType
from typing import Any, Self

from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse

Item = SessionMessage | Exception


class _TypedResults:
    """A stream of messages in which every result has a `resultType`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def last_context(self) -> Context | None:
        """The context of the sender of the last message, which the SDK reads."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Item:
        return _with_type(await self._inner.receive())

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        return _with_type(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)


def _with_type(item: Item) -> Item:
    if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
        item.message.result.setdefault("resultType", "complete")
    return item


def add_result_type(transport: Transport) -> Transport:
    """Returns the transport with `resultType` in every result."""
    return _wrap(transport)


@asynccontextmanager
async def _wrap(transport: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any]:
    async with transport as (read, write):
        yield _TypedResults(read), write
