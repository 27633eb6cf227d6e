"""Running a web server that shuts down in order when its task is cancelled, as it does on a signal.

uvicorn is imported by the caller or by `serve_app`: a process that never serves a page does without it.
"""

import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    import uvicorn

SHUTDOWN_GRACE_S = 1


async def until_cancelled(server: "uvicorn.Server", sockets: Sequence[socket.socket]) -> None:
    """Serve on the sockets until cancelled or stopped; return when open requests have ended or their grace is over."""
    stopped = anyio.Event()
    for listener in sockets:
        # Or the second part of an answer waits for the client, up to 40 ms. Connections inherit it; asyncio sets it
        # only on sockets that name their protocol, and those of `socket.create_server` do not.
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


async def serve_app(app: object, *sockets: socket.socket) -> None:
    """Serve an ASGI application until cancelled, and leave the signals of the process alone."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None]:
            """Signals belong to the program that started the server."""
            yield

    config = uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType]
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        # By default uvicorn believes X-Forwarded-For and -Proto from any client on this machine.
        proxy_headers=False,
        server_header=False,
    )
    await until_cancelled(Server(config), sockets)
