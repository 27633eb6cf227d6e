"""MCP over Streamable HTTP at `/mcp`, both eras of the protocol, on loopback addresses only.

Requests must name this server in `Host` and, when a browser sends one, in `Origin`, so that no web page can reach it by
rebinding its name (https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#security-warning). What is
not promised here: telling apart the users of one machine. Whoever can open a local connection acts as the operator's
assistant, though never as a person who approves.
"""

import ipaddress
import socket
from collections.abc import Callable
from contextlib import closing

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

from planwarden.agent.errors import UsageError
from planwarden.server.configuration import Settings
from planwarden.server.mcp_desk import opening
from planwarden.server.mcp_server import PlanwardenServer, build_server
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
    with closing(_listening(host, port)) as listener:
        taken = int(listener.getsockname()[1])
        server = build_server(opening(warden), settings.home)
        app = http_app(server, host, taken)
        if started is not None:
            started(f"http://{_in_url(host)}:{taken}{PATH}")
        await _serve(app, listener, server.end_streams)


def http_app(server: PlanwardenServer, host: str, port: int) -> Starlette:
    """The server as an ASGI application that answers only to its own names."""
    names = [f"{name}:{port}" for name in dict.fromkeys(("127.0.0.1", "localhost", "[::1]", _in_url(host)))]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=names,
        allowed_origins=[f"http://{name}" for name in names],
    )
    return server.streamable_http_app(
        streamable_http_path=PATH, max_request_body_size=MAX_BODY_BYTES, transport_security=security, host=host
    )


class _HttpServer(uvicorn.Server):
    """Uvicorn waits for open streams when it stops, and streams that listen to changes do not end by themselves."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


async def _serve(app: Starlette, listener: socket.socket, end_streams: Callable[[], None]) -> None:
    """Runs uvicorn so that being cancelled, like a signal, closes the store properly."""
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=CLOSING_S)
    server = _HttpServer(config, end_streams)
    stopped = anyio.Event()

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            await server.serve(sockets=[listener])
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
