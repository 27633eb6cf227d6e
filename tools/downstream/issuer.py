"""Requests to the authorization server behind a downstream server: over https, in bounded time, answered briefly."""

from urllib.parse import urlsplit

import httpx2

from planwarden.tools.downstream.tools import one_line

MAX_ANSWER_BYTES = 1024 * 1024
TIMEOUT_S = 20.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class AccessError(httpx2.TransportError):
    """The request was not sent, or refused unread, for want of a login; the message says what to do."""


class OwnRequests(httpx2.AsyncBaseTransport):
    """Requests to an authorization server: over https, and answered briefly."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        check_address(str(request.url))
        response = await self._inner.handle_async_request(request)
        data = bytearray()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        async for chunk in response.stream:
            data += chunk
            if len(data) > MAX_ANSWER_BYTES:
                break
        await response.aclose()
        if len(data) > MAX_ANSWER_BYTES:
            raise AccessError(f"its authorization server answered with more than {MAX_ANSWER_BYTES} bytes")
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=httpx2.ByteStream(bytes(data)), request=request
        )

    def client(self) -> httpx2.AsyncClient:
        """For the requests that an OAuth flow makes."""
        return httpx2.AsyncClient(transport=self, timeout=TIMEOUT_S)


def check_address(url: str) -> None:
    """Raises `AccessError` when secrets would go to that address in the clear."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise AccessError(f"its authorization server is not at an https address: {one_line(url, 200)}")
