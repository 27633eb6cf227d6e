"""The body of a server's answer, unpacked here and cut off beyond a limit: a few packed bytes can be gigabytes.

https://www.rfc-editor.org/rfc/rfc9110#section-8.4: what was packed is told by `Content-Encoding`; the HTTP client would
unpack it without measure.
"""

import zlib
from collections.abc import AsyncIterator

import httpx2

ENCODINGS = "gzip, deflate"
"""What is asked for, and can be unpacked."""


class BoundedBody(httpx2.AsyncByteStream):
    """A body that breaks off beyond the limit. Raises `StreamError` then, and when it cannot be unpacked."""

    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int, *, is_packed: bool) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        # With this size of the window both encodings are told apart by their first bytes.
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if is_packed else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for packed in self._inner:
            chunk = self._unpacked(packed, self._max_bytes + 1 - size)
            size += len(chunk)
            if size > self._max_bytes:
                raise httpx2.StreamError(f"the answer is larger than {self._max_bytes} bytes")
            yield chunk

    def _unpacked(self, packed: bytes, most: int) -> bytes:
        if self._unpacker is None:
            return packed
        try:
            return self._unpacker.decompress(packed, most)
        except zlib.error:
            raise httpx2.StreamError("the answer cannot be unpacked") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


def bound(response: httpx2.Response, max_bytes: int) -> None:
    """Bound the body of an answer that nobody has begun to read. Raises `StreamError` for an encoding not asked for."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise httpx2.StreamError("the answer is packed in a way that nobody asked for")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    is_packed = encoding not in ("identity", "")
    response.stream = BoundedBody(response.stream, max_bytes, is_packed=is_packed)
    if is_packed:
        del response.headers["content-encoding"]
        response.headers.pop("content-length", None)
