"""Running a web server so that being cancelled, like a signal, closes it in order."""

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    # Imported by whoever makes the server: a process that never serves does without it.
    import uvicorn


async def until_cancelled(server: "uvicorn.Server", sockets: Sequence[socket.socket]) -> None:
    """Serve on the sockets until cancelled or stopped; returns when open requests have ended or their grace is over."""
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
