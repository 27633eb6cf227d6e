"""Decompresses the body of a server's answer within a limit, because a few compressed bytes can become gigabytes.

The HTTP client would decompress what `Content-Encoding` names without a limit
(https://www.rfc-editor.org/rfc/rfc9110#section-8.4).
"""

import zlib
from collections.abc import AsyncIterator

import httpx2

from planwarden.tools.downstream.value_counter import MAX_VALUES, EventCounter, ValueCounter, exceeds

ENCODINGS = "gzip, deflate"
"""The encodings that requests accept."""


class BoundedBody(httpx2.AsyncByteStream):
    """Raises `StreamError` when the body is larger than a limit or cannot be decompressed."""

    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int, *, is_compressed: bool) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._values = ValueCounter()
        # With this window size zlib detects gzip and deflate by their first bytes.
        self._decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32) if is_compressed else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            data = self._decompress(chunk, self._max_bytes + 1 - size)
            size += len(data)
            if size > self._max_bytes:
                raise httpx2.StreamError(f"the answer is larger than {self._max_bytes} bytes")
            if exceeds(self._values, data):
                raise httpx2.StreamError(f"the answer has more than {MAX_VALUES} values")
            yield data

    def _decompress(self, chunk: bytes, max_bytes: int) -> bytes:
        if self._decompressor is None:
            return chunk
        try:
            return self._decompressor.decompress(chunk, max_bytes)
        except zlib.error:
            raise httpx2.StreamError("the answer cannot be decompressed") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedEvents(httpx2.AsyncByteStream):
    """Raises `SSEError`, which fails the request, when an event has too many values. The SDK bounds its bytes."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner
        self._values = EventCounter()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            if exceeds(self._values, chunk):
                raise httpx2.SSEError(f"the answer has more than {MAX_VALUES} values")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def bound_body(response: httpx2.Response, max_bytes: int) -> None:
    """Limit the body of an answer before it is read. Raises `StreamError` for an encoding that was not accepted."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise httpx2.StreamError("the answer has a content encoding that was not accepted")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    is_compressed = encoding not in ("identity", "")
    response.stream = BoundedBody(response.stream, max_bytes, is_compressed=is_compressed)
    if is_compressed:
        del response.headers["content-encoding"]
        response.headers.pop("content-length", None)
