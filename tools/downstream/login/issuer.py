"""Requests to the authorization server of a downstream server: checked addresses, bounded time and size.

The downstream server names its authorization server, so it may point us at anything that this machine can reach
(server-side request forgery, https://modelcontextprotocol.io/specification/2026-07-28/basic/security_best_practices). A
public server cannot make us send requests to this machine or its network: each name is resolved once, every
address is checked, and the connection goes to a checked one. A server in a private network may have its authorization
server there too. Not prevented: a public server can pass for a private one if its own name resolves to a private
address. Even then we reach only hosts with a certificate for the given name, and the server sees no answer.
"""

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx2

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError, ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.tools.downstream.bounded_streams import ENCODINGS, bound_answer
from planwarden.tools.downstream.listing import one_line
from planwarden.tools.web.access import AddressPolicy, IPAddress, Resolver, WebAccess, resolve_host, special_range
from planwarden.tools.web.fetch import GuardedTransport, load_system_tls

MAX_ANSWER_BYTES = 100 * 1024
"""The most bytes of one answer; a stored login holds a few answers."""
TIMEOUT_S = 20.0
"""Seconds that one whole answer may take."""
_PRIVATE_NETWORKS = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
        # Address translators and proxies may map any public address into these.
        *("198.18.0.0/15", "64:ff9b::/96"),
    )
)
"""Private networks. None of them contains 169.254.169.254, where cloud machines get their keys."""
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")


class AccessError(httpx2.TransportError):
    """The server did not get the request, or refused it unread, for lack of a usable login; the message says why."""


@dataclass(eq=False)
class IssuerRequests(httpx2.AsyncBaseTransport):
    """Sends requests to an authorization server. Raises `AccessError`, or a `TransportError` of the HTTP client."""

    inner: httpx2.AsyncBaseTransport
    server_url: str
    """The address of the downstream server, which names the authorization server."""
    resolve: Resolver = resolve_host

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        check_address(str(request.url), self.server_url)
        request.headers["accept-encoding"] = ENCODINGS
        try:
            # A limit per read would start again with every byte of a slow answer.
            with anyio.fail_after(TIMEOUT_S):
                return await self._send(request)
        except TimeoutError:
            raise AccessError(f"its authorization server did not answer within {TIMEOUT_S:g} s") from None
        except httpx2.StreamError as error:
            raise AccessError(f"the answer of its authorization server cannot be read: {error}") from None
        except ToolError as error:
            raise AccessError(f"its authorization server was not asked: {error.message}") from None
        except OSError:
            raise AccessError("the server's own address was not found") from None

    def client(self) -> httpx2.AsyncClient:
        """Return a client for the requests of an OAuth flow."""
        return httpx2.AsyncClient(transport=self, timeout=TIMEOUT_S)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        if is_local(self.server_url):
            return await _read(await self.inner.handle_async_request(request), request)
        tls = await anyio.to_thread.run_sync(load_system_tls)
        async with GuardedTransport(await self.build_access(request.url), tls) as guarded:
            return await _read(await guarded.handle_async_request(request), request)

    async def build_access(self, url: httpx2.URL) -> WebAccess:
        """Return web access to the URL's port, in private networks too if the downstream server itself is in one."""
        server = urlsplit(self.server_url)
        literal = _parse_address(server.hostname or "")
        names = [literal] if literal is not None else await self.resolve(server.hostname or "", server.port or 443)
        # An IPv6 address may end with `%` and the name of an interface, which a network must not have.
        addresses = [ipaddress.ip_network(str(name).partition("%")[0]) for name in names]
        is_private_server = any(special_range(address.network_address) for address in addresses)
        networks = (*_PRIVATE_NETWORKS, *addresses) if is_private_server else ()
        ports = frozenset({url.port or 443})
        return WebAccess(policy=AddressPolicy(allowed_networks=networks, ports=ports), resolve=self.resolve)


async def _read(response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    """Return the answer with its body read."""
    response.request = request
    try:
        bound_answer(response, MAX_ANSWER_BYTES)
        await response.aread()
    finally:
        await response.aclose()
    return response


def check_address(url: str, server_url: str) -> None:
    """Raise `AccessError` unless the server at `server_url` may have its authorization server at `url`.

    Secrets never travel unencrypted, and only a server on this machine can have its authorization server here.
    """
    is_allowed = is_local(server_url) if is_local(url) else is_confidential(url)
    if is_allowed and not is_local(server_url):
        # A browser resolves names by itself, so only a literal address can be refused here.
        address = _parse_address(urlsplit(url).hostname or "")
        is_private_server = _parse_address(urlsplit(server_url).hostname or "") is not None
        is_allowed = address is None or special_range(address) is None or is_private_server
    if not is_allowed:
        raise AccessError(f"its authorization server is not at a public https address: {one_line(url, 200)}")


def is_confidential(url: str) -> bool:
    """Return whether nobody else can read what is sent to the address."""
    return urlsplit(url).scheme == "https" or is_local(url)


def is_local(url: str) -> bool:
    """Return whether the URL names this machine."""
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    literal = _parse_address(host)
    if literal is None:
        # https://www.rfc-editor.org/rfc/rfc6761#section-6.3
        return host == "localhost" or host.endswith(".localhost")
    address = (literal.ipv4_mapped or literal) if isinstance(literal, ipaddress.IPv6Address) else literal
    return address.is_loopback or address.is_unspecified


def _parse_address(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def describe_refusal(response: httpx2.Response) -> str:
    """Return only the status and the error code of an answer, because the rest may repeat a secret.

    https://www.rfc-editor.org/rfc/rfc6749#section-5.2, https://www.rfc-editor.org/rfc/rfc7591#section-3.2.2
    """
    code: JsonValue = None
    with suppress(PlanwardenError):
        body = read_json(response.content)
        code = body.get("error") if isinstance(body, dict) else None
    reason = f" ({code})" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    return f"HTTP status {response.status_code}{reason}"
