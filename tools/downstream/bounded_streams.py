"""Opens the SDK's streams to a server's URL, and limits each answer: its bytes after decompression, and its values.

The HTTP client would decompress according to `Content-Encoding` without a limit, and a few bytes can become
gigabytes (https://www.rfc-editor.org/rfc/rfc9110#section-8.4). The SDK limits the bytes of an event, not its values.

Since revision 2026-07-28 every result has a `resultType`. Some servers omit it, and clients must then assume `complete`
(https://modelcontextprotocol.io/specification/2026-07-28/basic#resulttype). The SDK refuses a result without it, which
would give a successful call an unknown outcome. It also refuses a whole listing for one malformed tool. Each request of
a server occupies a task of the SDK until it is answered, and a server could send any number of requests.
`IncomingMessages` prevents all three, for local servers too.
"""

import math
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import ListToolsResult
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from mcp_types.methods import validate_server_result
from pydantic import JsonValue, ValidationError

from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.listing import MALFORMED
from planwarden.tools.downstream.value_counter import MAX_VALUES, SLICE_BYTES, EventValueCounter, ValueCounter

CONNECT_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 30.0
ENCODINGS = "gzip, deflate"
"""The encodings that our requests accept in answers."""
MAX_SERVER_REQUESTS = 16
"""How many requests of one server may wait for our answer at the same time."""
CANCELLED = "notifications/cancelled"


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(
        self, response: httpx2.Response, counter: ValueCounter, max_bytes: float, *, is_compressed: bool
    ) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._inner = response.stream
        self._counter = counter
        self._max_bytes = max_bytes
        # With this window size zlib detects gzip and deflate by their first bytes.
        self._decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32) if is_compressed else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            for data in self._decompress(chunk):
                size += len(data)
                if size > self._max_bytes:
                    raise httpx2.StreamError(f"the answer is larger than {self._max_bytes} bytes")
                if self._counter.feed(data):
                    # After any other error in a stream of events, the SDK may reconnect instead of failing the request.
                    kind = httpx2.SSEError if isinstance(self._counter, EventValueCounter) else httpx2.StreamError
                    raise kind(f"the answer has more than {MAX_VALUES} values")
                yield data

    def _decompress(self, chunk: bytes) -> Iterator[bytes]:
        if self._decompressor is None:
            yield chunk
            return
        has_more = True
        while has_more:
            try:
                data = self._decompressor.decompress(chunk, SLICE_BYTES)
            except zlib.error:
                raise httpx2.StreamError("the answer cannot be decompressed") from None
            yield data
            chunk, has_more = self._decompressor.unconsumed_tail, len(data) == SLICE_BYTES

    async def aclose(self) -> None:
        await self._inner.aclose()


def bound_answer(response: httpx2.Response, max_bytes: int | None) -> None:
    """Limit an answer that is not read yet: its bytes and values or, if `max_bytes` is None, the values of each event.

    Reading an event with too many values raises `SSEError`.

    Raises:
        StreamError: the answer has an encoding that we do not accept.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower() or "identity"
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise httpx2.StreamError("the answer has a content encoding that was not accepted")
    is_compressed = encoding != "identity"
    counter, limit = (EventValueCounter(), math.inf) if max_bytes is None else (ValueCounter(), max_bytes)
    response.stream = _BoundedStream(response, counter, limit, is_compressed=is_compressed)
    if is_compressed:
        del response.headers["content-encoding"]
        response.headers.pop("content-length", None)


class _Stream:
    """A wrapper around one of the SDK's streams, which have no common public type.

    `open_requests`, which both streams of a server share, has the ids of its requests that wait for our answer.
    """

    def __init__(self, inner: Any, open_requests: set[int | str]) -> None:
        self.inner = inner
        self.open_requests = open_requests

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.inner.__aexit__(*error)


class IncomingMessages(_Stream):
    """The messages of the server, without surplus requests, and with results changed so that the SDK accepts them."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await self.inner.__anext__()
            if not isinstance(item, SessionMessage):
                return item
            if isinstance(item.message, JSONRPCResponse):
                item.message.result.setdefault("resultType", "complete")
                _replace_malformed_tools(item.message.result)
            if self._admits(item.message):
                return item

    def _admits(self, message: JSONRPCMessage) -> bool:
        """Return whether to pass the message on. A request stays open until we answer it or the server cancels it."""
        if isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
            request_id = (message.params or {}).get("requestId")
            if isinstance(request_id, int | str):
                self.open_requests.discard(request_id)
        if not isinstance(message, JSONRPCRequest):
            return True
        if message.id in self.open_requests or len(self.open_requests) >= MAX_SERVER_REQUESTS:
            return False
        self.open_requests.add(message.id)
        return True


def _replace_malformed_tools(result: dict[str, JsonValue]) -> None:
    """Replace each malformed tool of a listing, in place, with one that says why it cannot be used."""
    if not isinstance(tools := result.get("tools"), list):
        return
    # Only listings since revision 2026-07-28 have a `ttlMs`, and all of them do.
    version = "2026-07-28" if "ttlMs" in result else "2025-11-25"
    # The SDK checks a listing twice: by the rules of the revision, and as its own type.
    for check in (partial(validate_server_result, "tools/list", version), ListToolsResult.model_validate):
        try:
            check(result)
        except ValidationError as error:
            for fault in error.errors(include_url=False, include_input=False):
                match fault["loc"]:
                    case "tools", int(index), *where:
                        tool = tools[index]
                        name = tool.get("name") if isinstance(tool, dict) else None
                        tools[index] = {
                            "name": name if isinstance(name, str) else "",
                            "inputSchema": {"type": "object"},
                            "_meta": {MALFORMED: f"{'.'.join(map(str, where))}: {fault['msg']}".removeprefix(": ")},
                        }
                    case _:
                        pass


class OutgoingMessages(_Stream):
    """Our messages to the server."""

    async def send(self, item: SessionMessage, /) -> None:
        await self.inner.send(self.wrap(item))
        if isinstance(item.message, JSONRPCResponse | JSONRPCError) and item.message.id is not None:
            self.open_requests.discard(item.message.id)

    def wrap(self, item: SessionMessage) -> object:
        """Return the message in the form that the inner stream takes."""
        return item


@asynccontextmanager
# `Any`, because the SDK's type for the pair of streams has no public name.
async def connect_streams(
    config: ServerConfig,
    transport: httpx2.AsyncBaseTransport,
    max_event_bytes: int,
    *,
    read_s: float | None,
    is_typed: bool = True,
) -> AsyncGenerator[Any]:
    """Yield our streams to the server's URL or, without `is_typed`, the SDK's. A read may take `read_s` seconds."""
    assert config.url is not None
    timeout = httpx2.Timeout(connect=CONNECT_TIMEOUT_S, read=read_s, write=WRITE_TIMEOUT_S, pool=CONNECT_TIMEOUT_S)
    async with (
        httpx2.AsyncClient(headers=dict(config.headers), timeout=timeout, transport=transport) as client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=max_event_bytes) as (read, write),
    ):
        ids = set[int | str]()
        yield (IncomingMessages(read, ids), OutgoingMessages(write, ids)) if is_typed else (read, write)
