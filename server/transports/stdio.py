"""MCP over standard input and output: nothing but protocol on stdout, everything else on stderr.

Hosts start this process while somebody waits, and most of the start is importing the SDK. That makes many objects and
no garbage, so it happens with the cyclic collector off. The store opens after the first answer, see `mcp/desk.py`; what
only an open store needs is imported then. A setting that cannot be used is refused before anything is served.
"""

import gc
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress

import anyio

from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.settings.configuration import Settings
from planwarden.server.telemetry.logs import log_to_stderr

CLOSING_S = 5.0


async def serve_stdio(settings: Settings) -> None:
    """Serve until the client closes our standard input; on SIGINT or SIGTERM close the store and end the process.

    Raises:
        UsageError: a setting, a tool or the model is not usable; nothing was served.
    """
    log_to_stderr(settings.observation)
    with _without_collector():
        # Imported here, with the collector off; it also keeps the SDK out of commands that do not serve.
        from planwarden.server.mcp.server import build_server

        warden = Warden(settings=settings, whole_process=True)

        @asynccontextmanager
        async def opening() -> AsyncGenerator[Service]:
            async with AsyncExitStack() as stack:
                with _without_collector():
                    await stack.enter_async_context(warden)
                    # Like what the warden imports when it opens, nothing that a first answer needs.
                    from planwarden.server.inbox.launcher import with_launcher
                async with with_launcher(settings, warden.service):
                    yield warden.service

        server = build_server(opening, settings.home, observer=warden.observer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_signal, tasks.cancel_scope, server.closed)
        await server.run_stdio_async()
        tasks.cancel_scope.cancel()


@contextmanager
def _without_collector() -> Generator[None]:
    """What is made meanwhile stays for the life of the process; looking through it again and again finds nothing."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


async def _end_on_signal(scope: anyio.CancelScope, closed: anyio.Event) -> None:
    """Cancels the server, waits until its store is closed, and ends the process.

    Returning would not end it: the thread that reads standard input can only be stopped by its end of file.
    """
    # Event loops on Windows cannot receive signals; there the default handlers stay.
    with suppress(NotImplementedError), anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            scope.cancel()
            with anyio.move_on_after(CLOSING_S, shield=True):
                await closed.wait()
            sys.stderr.flush()
            os._exit(128 + number)
