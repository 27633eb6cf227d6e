"""Serves MCP over standard input and output: stdout carries only the protocol, everything else goes to stderr.

A person waits while a host starts this process, and most of that time goes into importing the SDK. Imports create many
objects and no garbage, so the cyclic collector is off while they run. Opening the store, and the imports that only an
open store needs, come after the first answer (see `mcp/requests.py`). A wrong setting raises an error before
anything is served.
"""

import gc
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TextIO

import anyio

from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.guard.guard import answering_hooks
from planwarden.server.inbox.launcher import with_launcher
from planwarden.server.settings.configuration import ProcessRole, Settings
from planwarden.server.settings.secrets import find_request_state_key, open_secrets
from planwarden.server.telemetry.logs import log_to_stderr

CLOSING_S = 5.0


async def serve_stdio(settings: Settings, wire: TextIO, role: ProcessRole = "both") -> None:
    """Serve until the client closes standard input; on SIGINT or SIGTERM close the store and end the process.

    The caller ensures that nothing but the protocol is written to `wire`.

    Raises:
        UsageError: a setting, a tool, the model or the key of a shared store is not usable; nothing was served.
        StoreError: a shared store cannot be opened; nothing was served.
    """
    log_to_stderr(settings.observation)
    with _without_collector():
        # Imported here, so that the collector is off and other commands do not import the SDK.
        from planwarden.server.mcp.server import PlanwardenServer

        warden = Warden(settings=settings, whole_process=True, role=role)

        @asynccontextmanager
        async def opening() -> AsyncGenerator[Service]:
            async with warden, with_launcher(settings, warden.service), answering_hooks(settings, warden.service):
                yield warden.service

        server = PlanwardenServer(opening, await _find_key(settings), warden=warden)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_signal, tasks.cancel_scope, server.closed)
        await server.run_on_wire(wire)
        tasks.cancel_scope.cancel()


async def _find_key(settings: Settings) -> bytes | None:
    """Return the key of request states, after checking that this process may use the secrets. A shared store is
    opened only for that moment."""
    async with open_secrets(settings) as secrets:
        await secrets.check()
        return await find_request_state_key(settings, secrets)


@contextmanager
def _without_collector() -> Generator[None]:
    """Turn the collector off; keep the block's objects, which live as long as the process, out of later collections."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


async def _end_on_signal(scope: anyio.CancelScope, closed: anyio.Event) -> None:
    """Cancel the server on a signal, wait until its store is closed, and end the process.

    Returning would not end the process, because only end of file stops the thread that reads standard input.
    """
    # Event loops on Windows cannot receive signals; the default handlers apply there.
    with suppress(NotImplementedError), anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            scope.cancel()
            with anyio.move_on_after(CLOSING_S, shield=True):
                await closed.wait()
            sys.stderr.flush()
            os._exit(128 + number)
