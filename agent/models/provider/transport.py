"""Bytes to and from a provider: one connection per request, and an answer of bounded size.

A provider's client lives as long as the process, and nobody closes a model. Its transport therefore opens a connection
for each request and closes it with the answer; between two prompts no socket is open, and the next prompt may run in
another event loop. An ordinary client makes the connection, with the proxies and certificates of the environment. It
does not follow redirects, which would send the key elsewhere.

`close_connections` closes what a client leaves open when it is cancelled during a stream. The limit counts bytes after
decompression, so that a small body cannot expand into a large one.
"""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache

import anyio
import httpx2

MAX_ANSWER_BYTES = 4_000_000
"""Far above the longest answer of any model: 64,000 tokens are about 300,000 bytes."""

MAX_STREAM_BYTES = 20_000_000
"""The same answer as server-sent events, with a frame of some hundred bytes per word; nothing is kept."""

CONNECT_TIMEOUT_S = 10.0
_FRAMING = ("content-encoding", "content-length", "transfer-encoding")
_open_bodies: ContextVar[list["_BoundedBody"] | None] = ContextVar("open_connections", default=None)


class AnswerTooLarge(Exception):
    """The body of an answer exceeds the limit; the error holds no part of it."""


class ConnectionPerRequest(httpx2.AsyncBaseTransport):
    """A transport that keeps no connection open."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        client = httpx2.AsyncClient(verify=_load_certificates(), follow_redirects=False)
        try:
            response = await client.send(request, stream=True)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await client.aclose()
            raise
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        body = _BoundedBody(client, response, MAX_STREAM_BYTES if is_stream else MAX_ANSWER_BYTES)
        if (opened := _open_bodies.get()) is not None:
            opened.append(body)
        headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _FRAMING]
        return httpx2.Response(
            response.status_code,
            headers=headers,
            stream=body,
            extensions={"http_version": response.extensions.get("http_version", b"HTTP/1.1")},
        )


@asynccontextmanager
async def close_connections() -> AsyncGenerator[None]:
    """Close on exit every connection that was opened inside."""
    opened: list[_BoundedBody] = []
    token = _open_bodies.set(opened)
    try:
        yield
    finally:
        _open_bodies.reset(token)
        for body in opened:
            await body.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """The decoded body, up to the limit; `aclose` closes the connection."""

    def __init__(self, client: httpx2.AsyncClient, response: httpx2.Response, limit_bytes: int) -> None:
        self._client = client
        self._response = response
        self._limit_bytes = limit_bytes

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        size = 0
        async for chunk in self._response.aiter_bytes():
            size += len(chunk)
            if size > self._limit_bytes:
                raise AnswerTooLarge
            yield chunk

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._response.aclose()
            await self._client.aclose()


def build_http_client(timeout_s: float) -> httpx2.AsyncClient:
    """Return a client for a provider's library; it holds no connection, so that nobody has to close it."""
    timeout = httpx2.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s))
    return httpx2.AsyncClient(transport=ConnectionPerRequest(), timeout=timeout, follow_redirects=False)


@cache
def _load_certificates() -> ssl.SSLContext:
    """Return the certificates, read once: reading takes longer than many a request."""
    return httpx2.create_ssl_context()
