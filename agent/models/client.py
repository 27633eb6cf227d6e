"""The provider's own client for an endpoint: one connection per request, and an answer of bounded size.

Importing a provider's SDK takes seconds, so each SDK is imported only where it is used. The key and the address are
always passed in, so that no client reads them from the environment of the process.

A provider's client lives as long as the process, and nobody closes it. Its transport therefore opens a connection for
each request and closes it after the answer. Between two prompts no socket is open, so the next prompt may run in
another event loop. An ordinary HTTP client opens each connection, with the proxies and certificates of the environment.
That client does not follow redirects, which would send the key elsewhere.

`close_connections` closes what a client leaves open when it is cancelled during a stream. The size limit counts bytes
after decompression, so that a small body cannot expand into a large one.

Source: https://pydantic.dev/docs/ai/models/openai/#openai-compatible-models.
"""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import anyio
import httpx2
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider_class

from planwarden.agent.models.endpoint import Endpoint

MAX_ANSWER_BYTES = 4_000_000
"""The most bytes of an answer, far more than any model writes: 64,000 tokens are about 300,000 bytes."""

MAX_STREAM_BYTES = 20_000_000
"""The most bytes of an answer in server-sent events, whose framing adds several hundred bytes per word."""

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
    """Close, at the end of the block, every connection that was opened inside it."""
    opened: list[_BoundedBody] = []
    token = _open_bodies.set(opened)
    try:
        yield
    finally:
        _open_bodies.reset(token)
        for body in opened:
            await body.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """The decompressed body of a response, up to the limit; `aclose` closes the connection."""

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


@cache
def _load_certificates() -> ssl.SSLContext:
    """Return the TLS context, whose certificates are read once: reading them takes longer than many requests."""
    return httpx2.create_ssl_context()


def build_client(endpoint: Endpoint) -> Model:
    """Return the provider's client for the endpoint. Raises `ImportError` if its extra is not installed."""
    if endpoint.wire != "openai-responses":
        return infer_model(f"{endpoint.wire}:{endpoint.model}", lambda _: _build_provider(endpoint))
    from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings

    # Every prompt is complete in itself, so the provider need not store anything.
    settings = OpenAIResponsesModelSettings(openai_store=False)
    return OpenAIResponsesModel(endpoint.model, provider=_build_provider(endpoint), settings=settings)


def _build_provider(endpoint: Endpoint) -> Provider[Any]:
    """Return the provider, which knows what this server has in addition to the common features of its API."""
    timeout = httpx2.Timeout(endpoint.timeout_s, connect=min(CONNECT_TIMEOUT_S, endpoint.timeout_s))
    # This client keeps no connection open, so nobody has to close it.
    http = httpx2.AsyncClient(transport=ConnectionPerRequest(), timeout=timeout, follow_redirects=False)
    # The clients require a key; servers that need none ignore it.
    key = endpoint.key or "no-key"
    if endpoint.provider.startswith("openai") and not endpoint.is_default_url:
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        return OpenAICompatibleProvider("openai-compatible", base_url=endpoint.url, api_key=key, http_client=http)
    kind: Any = infer_provider_class(endpoint.provider)
    return kind(base_url=endpoint.url, api_key=key, http_client=http)
