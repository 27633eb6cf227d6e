"""MCP over Streamable HTTP at `/mcp`, both eras of the protocol, and the inbox at `/inbox`, on loopback addresses only.

Requests must name this server in `Host` and, when a browser sends one, in `Origin`, so that no web page can reach it by
rebinding its name (https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#security-warning). What is
not promised here: telling apart the users of one machine. Whoever can open a local connection acts as the operator's
assistant, though never as a person who approves.
"""

import ipaddress
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from planwarden.agent.errors import UsageError
from planwarden.server.configuration import Settings
from planwarden.server.inbox import inbox_app
from planwarden.server.inbox_door import BASE, announced
from planwarden.server.inbox_listening import joined
from planwarden.server.inbox_site import Site
from planwarden.server.mcp_desk import Opening, opening
from planwarden.server.mcp_server import PlanwardenServer, build_server
from planwarden.server.service import Service
from planwarden.server.stdio import log_to_stderr
from planwarden.server.warden import Warden

PATH = "/mcp"
MAX_BODY_BYTES = 8 * 1024 * 1024
CLOSING_S = 2
"""How long open streams may go on when the server stops."""


async def serve_http(
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve until interrupted or cancelled. `port` 0 takes a free one; `started` is told the address.

    Raises:
        UsageError: the host is not a loopback address, the port is taken, or a setting is not usable.
    """
    _check_loopback(host)
    log_to_stderr()
    warden = Warden(settings=settings)
    with closing(joined(_listening(host, port))) as listening:
        taken = listening.port
        address = f"http://{_in_url(host)}:{taken}"
        inbox_url = f"{listening.origin or address}{BASE}"
        app = http_app(build_server(_with_inbox(warden, inbox_url), settings.home), host, taken)
        site = Site(
            service=lambda: warden.service,
            home=settings.home,
            passphrase_file=settings.passphrase_file,
            origin=listening.origin,
        )
        hosts = _names(host, taken)
        if started is not None:
            started(f"{address}{PATH}")
        await _serve(_beside(app, inbox_app(site, lambda: hosts)), listening.sockets)


def http_app(server: PlanwardenServer, host: str, port: int) -> Starlette:
    """The server as an ASGI application that answers only to its own names."""
    names = _names(host, port)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=names,
        allowed_origins=[f"http://{name}" for name in names],
    )
    return server.streamable_http_app(
        streamable_http_path=PATH, max_request_body_size=MAX_BODY_BYTES, transport_security=security, host=host
    )


def _names(host: str, port: int) -> list[str]:
    """The `Host` headers of this server."""
    return [f"{name}:{port}" for name in dict.fromkeys(("127.0.0.1", "localhost", "[::1]", _in_url(host)))]


def _with_inbox(warden: Warden, url: str) -> Opening:
    """As `opening`, with the inbox announced while the store is open."""
    open_warden = opening(warden)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Service]:
        async with open_warden() as service, announced(service, url):
            yield service

    return opened


def _beside(app: ASGIApp, inbox: ASGIApp) -> ASGIApp:
    """The inbox under its own path; everything else, the life of the server too, is the first application's."""

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        is_inbox = scope["type"] == "http" and (path == BASE or path.startswith(f"{BASE}/"))
        await (inbox if is_inbox else app)(scope, receive, send)

    return dispatch


async def _serve(app: ASGIApp, sockets: Sequence[socket.socket]) -> None:
    """Runs uvicorn so that being cancelled, like a signal, closes the store properly."""
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=CLOSING_S)
    server = uvicorn.Server(config)
    stopped = anyio.Event()

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            await server.serve(sockets=list(sockets))
        stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            await stopped.wait()
        finally:
            server.should_exit = True


def _check_loopback(host: str) -> None:
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise UsageError(
            f"will not listen on {host!r}: everybody who can reach that address could use this server, and it has no "
            "authentication and no list of allowed hosts yet; use 127.0.0.1 (a tunnel such as ssh -L makes it reachable)"
        )


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error}; choose another --port") from error


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
