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

    def __init__(self, inner: httpx2.AsyncBaseTransport, server_url: str) -> None:
        """`server_url` is the address of the server that says where its authorization server is."""
        self._inner = inner
        self._server_url = server_url

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        check_address(str(request.url), self._server_url)
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


def check_address(url: str, server_url: str) -> None:
    """Raises `AccessError` when secrets would go to that address in the clear.

    Only a server on this machine can have its authorization server here: nobody else sends us to what listens here.
    """
    is_allowed = is_local(server_url) if is_local(url) else is_private(url)
    if not is_allowed:
        raise AccessError(f"its authorization server is not at an https address of the net: {one_line(url, 200)}")


def is_private(url: str) -> bool:
    """What is sent there nobody else can read."""
    return urlsplit(url).scheme == "https" or is_local(url)


def is_local(url: str) -> bool:
    """It is an address of this machine."""
    return urlsplit(url).hostname in _LOOPBACK
