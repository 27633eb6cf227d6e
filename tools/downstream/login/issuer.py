"""Requests to the authorization server behind a downstream server: where they may go, in bounded time, answered briefly.

Where it is, the downstream server says, so it may point at whatever this machine can reach (server-side request forgery,
https://modelcontextprotocol.io/specification/2026-07-28/basic/security_best_practices). A server of the net sends nobody
to addresses of this machine or of its network: names are resolved once, every address is checked, and the connection goes
to one that was checked. A server that is itself inside may have its authorization server inside. Not promised: that a
server of the net cannot pass for one inside, by what its own name resolves to; then it reaches what has a certificate for
the name that it gives, and hears nothing of the answer.
"""

import ipaddress
import json
import re
import ssl
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx2

from planwarden.agent.common.errors import ToolError
from planwarden.tools.downstream.bounded_body import ENCODINGS, bound
from planwarden.tools.downstream.tools import one_line
from planwarden.tools.web.access import AddressPolicy, IPAddress, Resolver, WebAccess, resolve_host, special_range
from planwarden.tools.web.fetch import GuardedTransport

MAX_ANSWER_BYTES = 100 * 1024
"""A few answers make up a stored login."""
TIMEOUT_S = 20.0
"""For one answer, whole."""
_INSIDE = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
        # What translators and proxies give out instead of every address of the net.
        *("198.18.0.0/15", "64:ff9b::/96"),
    )
)
"""Networks of a house or a company; what gives out keys of machines (169.254.169.254) is in none of them."""
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")


class AccessError(httpx2.TransportError):
    """The request was not sent, or refused unread, for want of a login; the message says what to do."""


class IssuerRequests(httpx2.AsyncBaseTransport):
    """Requests to an authorization server. Raises `AccessError` with the reason for whatever is not as it should be."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, server_url: str, *, resolve: Resolver = resolve_host) -> None:
        """`server_url` is the address of the server that says where its authorization server is."""
        self._inner = inner
        self._server_url = server_url
        self._resolve = resolve
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        check_address(str(request.url), self._server_url)
        request.headers["accept-encoding"] = ENCODINGS
        try:
            # A limit per read would begin anew with every byte of a slow drip.
            with anyio.fail_after(TIMEOUT_S):
                return await self._answered(request)
        except TimeoutError:
            raise AccessError(f"its authorization server did not answer within {TIMEOUT_S:g} s") from None
        except httpx2.StreamError as error:
            raise AccessError(f"its authorization server is not understood: {error}") from None
        except ToolError as error:
            raise AccessError(f"its authorization server is not asked: {error.message}") from None
        except OSError:
            raise AccessError("the server's own address is not found") from None

    def client(self) -> httpx2.AsyncClient:
        """For the requests that an OAuth flow makes."""
        return httpx2.AsyncClient(transport=self, timeout=TIMEOUT_S)

    async def _answered(self, request: httpx2.Request) -> httpx2.Response:
        if is_local(self._server_url):
            return await _read(await self._inner.handle_async_request(request), request)
        if self._tls is None:
            self._tls = await anyio.to_thread.run_sync(httpx2.create_ssl_context)
        async with GuardedTransport(await self.reach(request.url), self._tls) as guarded:
            return await _read(await guarded.handle_async_request(request), request)

    async def reach(self, url: httpx2.URL) -> WebAccess:
        """Every port, and of the networks that are not the net's those that the server itself is in."""
        server = urlsplit(self._server_url)
        addresses = await self._addresses(server.hostname or "", server.port or 443)
        is_inside = any(special_range(ipaddress.ip_address(address)) for address in addresses)
        networks = (*_INSIDE, *(ipaddress.ip_network(address) for address in addresses)) if is_inside else ()
        ports = frozenset({url.port or 443})
        return WebAccess(policy=AddressPolicy(allowed_networks=networks, ports=ports), resolve=self._resolve)

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        literal = _literal(host)
        return [str(literal)] if literal is not None else await self._resolve(host, port)


async def _read(response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    """The answer with its body read."""
    try:
        bound(response, MAX_ANSWER_BYTES)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        data = b"".join([chunk async for chunk in response.stream])
    finally:
        await response.aclose()
    stream = httpx2.ByteStream(data)
    return httpx2.Response(response.status_code, headers=response.headers, stream=stream, request=request)


def check_address(url: str, server_url: str) -> None:
    """Raises `AccessError` when secrets would go to that address in the clear, or it is written as one of this machine's.

    Only a server on this machine can have its authorization server here: nobody else sends us to what listens here.
    """
    is_allowed = is_local(server_url) if is_local(url) else is_private(url)
    if is_allowed and not is_local(server_url):
        # A person's browser cannot be kept from what a name resolves to; an address as such can be refused.
        written = _literal(urlsplit(url).hostname or "")
        is_inside = _literal(urlsplit(server_url).hostname or "") is not None
        is_allowed = written is None or special_range(written) is None or is_inside
    if not is_allowed:
        raise AccessError(f"its authorization server is not at an https address of the net: {one_line(url, 200)}")


def is_private(url: str) -> bool:
    """What is sent there nobody else can read."""
    return urlsplit(url).scheme == "https" or is_local(url)


def is_local(url: str) -> bool:
    """It is written as an address of this machine."""
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    literal = _literal(host)
    if literal is None:
        # https://www.rfc-editor.org/rfc/rfc6761#section-6.3
        return host == "localhost" or host.endswith(".localhost")
    address = (literal.ipv4_mapped or literal) if isinstance(literal, ipaddress.IPv6Address) else literal
    return address.is_loopback or address.is_unspecified


def _literal(host: str) -> IPAddress | None:
    """The address that a host is written as; None when it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def refusal(response: httpx2.Response) -> str:
    """Status and error code of an answer that was read; nothing else of it, which may repeat a secret.

    https://www.rfc-editor.org/rfc/rfc6749#section-5.2, https://www.rfc-editor.org/rfc/rfc7591#section-3.2.2
    """
    try:
        told: Any = json.loads(response.content)
    except ValueError:
        told = None
    code = cast("dict[str, object]", told).get("error") if isinstance(told, dict) else None
    known = f" ({code})" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    return f"HTTP status {response.status_code}{known}"
