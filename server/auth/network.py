"""Decides where the server may listen, and refuses requests for other names (DNS rebinding, cross-site requests).

A loopback address needs nothing. Any other address needs authentication and a list of the names under which clients
reach the server; without both the server does not start. A proxy does TLS; bind to loopback behind it where possible.
"""

import msgspec
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from planwarden.agent.common.errors import UsageError
from planwarden.server.auth.settings import HttpSettings, is_loopback

METADATA = "/.well-known/"
"""Public documents without effect, which browsers may read from any origin."""


class AllowedNames(msgspec.Struct, frozen=True):
    """The `Host` and `Origin` values that name this server."""

    hosts: tuple[str, ...]
    origins: tuple[str, ...]

    @classmethod
    def from_settings(cls, settings: HttpSettings, host: str, port: int) -> "AllowedNames":
        own = [f"{name}:{port}" for name in dict.fromkeys(("127.0.0.1", "localhost", "[::1]", format_host(host)))]
        hosts, origins = [*own], [f"http://{name}" for name in own]
        for name in settings.names:
            has_port = ":" in name.rpartition("]")[2]
            both = (name,) if has_port else (name, f"{name}:{port}")
            hosts.extend(both)
            origins.extend(f"{scheme}://{address}" for address in both for scheme in ("https", "http"))
        return cls(tuple(dict.fromkeys(hosts)), tuple(dict.fromkeys(origins)))


class AllowedNamesMiddleware:
    """The outermost ASGI middleware: 421 for another `Host`, 403 for another `Origin`."""

    def __init__(self, app: ASGIApp, names: AllowedNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            hosts = [host.lower() for host in headers.getlist("host")]
            if len(hosts) != 1 or hosts[0] not in self._names.hosts:
                await PlainTextResponse("this is not a name of this server", 421)(scope, receive, send)
                return
            is_foreign = any(origin.lower() not in self._names.origins for origin in headers.getlist("origin"))
            if is_foreign and not str(scope["path"]).startswith(METADATA):
                await PlainTextResponse("requests from other sites are refused", 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def check_network(settings: HttpSettings, host: str, *, trusts_caller: bool, accepts_trust: bool) -> None:
    """Raise `UsageError` unless the server may listen there; `check_access` looks at the tokens."""
    if is_loopback(host):
        return
    if not settings.names:
        raise UsageError(
            f"will not listen on {host!r}: everybody who can reach that address could use this server; it needs "
            "authentication (`planwarden token add NAME`, or [http] issuer) and [http] allowed_hosts in planwarden.toml"
        )
    if trusts_caller and not accepts_trust:
        raise UsageError(
            f"will not listen on {host!r} with [approvals] trust_caller: every caller there could approve its own "
            "actions; turn it off, or add --i-know-the-caller-can-approve-itself or "
            "[approvals] trust_caller_over_network"
        )


def check_access(host: str, *, needs_token: bool, has_issuer: bool, has_tokens: bool) -> None:
    """Raise `UsageError` if requests need a token and nobody can have one."""
    if needs_token and not (has_issuer or has_tokens):
        raise UsageError(
            f"will not listen on {host!r}: nobody could use it, because authentication is required and there is no "
            "valid token; make one with `planwarden token add NAME`, or set [http] issuer in planwarden.toml"
        )


def format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
