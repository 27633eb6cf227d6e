"""Runs a web server with a health check; when its task is cancelled, it shuts down gracefully, as on a signal."""

import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import anyio
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

SHUTDOWN_GRACE_S = 1
HEALTH_PATH = "/healthz"
"""The path at which proxies and supervisors check, without a login, that the process answers; the answer is `ok`."""


class HealthMiddleware:
    """Answers the health check itself, and passes everything else on to `app`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != HEALTH_PATH:
            await self._app(scope, receive, send)
            return
        response = PlainTextResponse("ok\n")
        if scope["method"] not in ("GET", "HEAD"):
            response = PlainTextResponse(status_code=405, headers={"Allow": "GET, HEAD"})
        await response(scope, receive, send)


async def until_cancelled(server: uvicorn.Server, sockets: Sequence[socket.socket]) -> None:
    """Serve on the sockets until cancelled or stopped; return when open requests have ended or their time is up."""
    stopped = anyio.Event()
    for listener in sockets:
        # Without this option the second part of an answer waits up to 40 ms for the client. Connections inherit it.
        # asyncio sets it only on sockets with an explicit protocol number, and `socket.create_server` gives them none.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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


class _EmbeddedServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the program that started the server."""
        yield


async def serve_app(app: ASGIApp, *sockets: socket.socket) -> None:
    """Serve an ASGI application until cancelled, and leave the signals of the process alone."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        # By default uvicorn believes X-Forwarded-For and -Proto from any client on this machine.
        proxy_headers=False,
        server_header=False,
    )
    await until_cancelled(_EmbeddedServer(config), sockets)
