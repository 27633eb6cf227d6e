"""Limits the body of a server's answer while it is read: its bytes after decompression, and its values.

The HTTP client would decompress what `Content-Encoding` names without a limit, and a few compressed bytes can become
gigabytes (https://www.rfc-editor.org/rfc/rfc9110#section-8.4). The SDK bounds the bytes of events, not their values.
"""

import math
import zlib
from collections.abc import AsyncIterator

import httpx2

from planwarden.tools.downstream.value_counter import MAX_VALUES, EventCounter, ValueCounter

ENCODINGS = "gzip, deflate"
"""The encodings that requests accept."""


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(
        self, response: httpx2.Response, counter: ValueCounter, max_bytes: float, *, is_compressed: bool = False
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
            data = self._decompress(chunk, size)
            size += len(data)
            if size > self._max_bytes:
                raise httpx2.StreamError(f"the answer is larger than {self._max_bytes} bytes")
            if self._counter.feed(data):
                # Only this one fails the request that a stream of events answers.
                kind = httpx2.SSEError if isinstance(self._counter, EventCounter) else httpx2.StreamError
                raise kind(f"the answer has more than {MAX_VALUES} values")
            yield data

    def _decompress(self, chunk: bytes, size: int) -> bytes:
        if self._decompressor is None:
            return chunk
        try:
            return self._decompressor.decompress(chunk, int(self._max_bytes) + 1 - size)
        except zlib.error:
            raise httpx2.StreamError("the answer cannot be decompressed") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


def bound_body(response: httpx2.Response, max_bytes: int) -> None:
    """Limit the body of an answer before it is read. Raises `StreamError` for an encoding that was not accepted."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower() or "identity"
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise httpx2.StreamError("the answer has a content encoding that was not accepted")
    is_compressed = encoding != "identity"
    response.stream = _BoundedStream(response, ValueCounter(), max_bytes, is_compressed=is_compressed)
    if is_compressed:
        del response.headers["content-encoding"]
        response.headers.pop("content-length", None)


def bound_events(response: httpx2.Response) -> None:
    """Limit the values of each event of an answer; reading one with more raises `SSEError`."""
    response.stream = _BoundedStream(response, EventCounter(), math.inf)
