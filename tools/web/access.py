"""What a tool may reach on the web, and how much it may read.

A URL comes from a model, or from a page that a model has read, so it may point into the operator's own network
(server-side request forgery) or at a host that never stops sending. Three pieces prevent that; the last two are in
`planwarden.tools.web.fetch`:

* `AddressPolicy` says which hosts, ports and addresses may be reached;
* `GuardedTransport` resolves a name once, checks every address of it, and connects to a checked one. A name server gets
  no second look-up that it could answer differently; Host header, SNI and certificate check still use the name;
* `fetch` follows redirects itself, each hop through the same transport, and reads a bounded body in bounded time.

Proxy variables are ignored; cookies and credentials are not kept. Not promised: protection from a public
host that forwards requests into a private network by itself.

Sources: https://www.iana.org/assignments/iana-ipv4-special-registry/ and
https://www.iana.org/assignments/iana-ipv6-special-registry/.
"""

import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import anyio
import msgspec

from planwarden.agent.common.errors import ToolError

if TYPE_CHECKING:
    import httpx2

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Takes a host name and a port; returns at least one IP address as text, best first, or raises `OSError`."""

WEB_PORTS = frozenset({80, 443, 8080, 8443})
"""Ports of web pages; services on other ports of public hosts could be confused by an HTTP request."""

MAX_ADDRESSES_TRIED = 4

_SPECIAL_RANGES = {
    "unspecified": "0.0.0.0/8 ::/128",
    "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7",
    "carrier-grade NAT": "100.64.0.0/10",
    "loopback": "127.0.0.0/8 ::1/128",
    # The host agent of Azure: a public address that only a virtual machine reaches.
    "cloud metadata": "168.63.129.16/32",
    "link-local": "169.254.0.0/16 fe80::/10",
    "documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
    "6to4": "192.88.99.0/24 2002::/16",
    "benchmarking": "198.18.0.0/15",
    "multicast": "224.0.0.0/4 ff00::/8",
    "IPv4-mapped": "::ffff:0:0/96",
    "NAT64": "64:ff9b::/96 64:ff9b:1::/48",
    "reserved": "192.0.0.0/24 240.0.0.0/4 2001::/23",
}
_SPECIAL_NETWORKS = tuple(
    (ipaddress.ip_network(network), kind) for kind, networks in _SPECIAL_RANGES.items() for network in networks.split()
)
_GLOBAL_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")


def special_range(address: IPAddress) -> str | None:
    """Return the kind of a non-public address, such as `loopback`; None for an address of the public internet."""
    is_reserved = address.version == 6 and address not in _GLOBAL_UNICAST_V6
    kinds = (kind for network, kind in _SPECIAL_NETWORKS if address in network)
    return next(kinds, "reserved" if is_reserved else None)


def host_and_port(url: "httpx2.URL") -> tuple[str, int]:
    """Return the host of an http or https URL in ASCII and lower case, without brackets, and its port."""
    port = url.port if url.port is not None else {"http": 80}.get(url.scheme, 443)
    return url.raw_host.decode("ascii"), port


class AddressPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which hosts may be reached; by default the public internet on `WEB_PORTS`."""

    allowed_endpoints: frozenset[tuple[str, int]] = frozenset()
    """Hosts that the operator chose, as `host_and_port` returns them; allowed whatever they resolve to."""
    allowed_networks: tuple[IPNetwork, ...] = ()
    """Networks that count as public."""
    ports: frozenset[int] = WEB_PORTS

    def check_url(self, url: "httpx2.URL") -> tuple[str, int]:
        """Return host and port of `url`. Raises `ToolError` when the URL is not allowed."""
        if url.scheme not in ("http", "https"):
            raise ToolError(f"the URL's scheme {url.scheme!r} is not supported; use http or https")
        if url.userinfo:
            raise ToolError("the URL contains a user name or password; remove the part before '@'")
        host, port = host_and_port(url)
        if not host:
            raise ToolError("the URL has no host; write it in full, such as https://example.org/page")
        if port not in self.ports and (host, port) not in self.allowed_endpoints:
            allowed = ", ".join(map(str, sorted(self.ports)))
            raise ToolError(f"port {port} of {host!r} may not be reached; allowed are {allowed}")
        return host, port

    def check_addresses(self, host: str, port: int, addresses: Sequence[str]) -> list[IPAddress]:
        """Return the parsed addresses. Raises `ToolError` if the policy forbids any of them."""
        parsed = [ipaddress.ip_address(address) for address in addresses]
        if (host, port) in self.allowed_endpoints:
            return parsed
        for address in parsed:
            kind = special_range(address)
            if kind is not None and not any(address in network for network in self.allowed_networks):
                # The error names the kind and not the address, which belongs to a private network.
                raise ToolError(f"{host!r} is at an address that may not be reached ({kind}); use a public host")
        return parsed


class WebLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one fetch may cost."""

    total_s: float = 20.0
    """Seconds for a fetch with all redirects."""
    connect_s: float = 5.0
    """Seconds for connecting to one address."""
    body_bytes: int = 4 * 1024 * 1024
    """The most bytes of the body after decompression."""
    redirects: int = 5


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses of `host` from the system's resolver, in its order, without duplicates."""
    entries = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class WebAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How the web tools reach the network."""

    policy: AddressPolicy = AddressPolicy()
    limits: WebLimits = WebLimits()
    resolve: Resolver = resolve_host
    tls: ssl.SSLContext | None = None
    """Certificates to trust; None for the system's."""


PUBLIC_WEB = WebAccess()


class WebReply(msgspec.Struct, frozen=True, kw_only=True):
    """The final response of a host."""

    url: str
    """The URL after redirects."""
    media_type: str
    """The media type in lower case, without parameters; empty when the host sent none."""
    charset: str | None
    body: bytes
    """The body after decompression."""
