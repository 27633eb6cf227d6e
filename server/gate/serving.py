"""Opens a gate: the relay at once, and the store and the engine when a call needs them or the host is quiet."""

import dataclasses
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TextIO

import anyio
import anyio.to_thread
from msgspec.structs import replace

from planwarden.agent.common.errors import PlanwardenError, StoreError, UsageError
from planwarden.server.api.warden import Warden
from planwarden.server.gate import frames
from planwarden.server.gate.calls import GatedCalls
from planwarden.server.gate.frames import Frame
from planwarden.server.gate.relay import Relay
from planwarden.server.gate.tools import GatedTools
from planwarden.server.inbox.launcher import with_launcher
from planwarden.server.settings.configuration import Settings
from planwarden.storage.gates import RunningGates
from planwarden.tools.downstream.config import ServerConfig, ServerList
from planwarden.tools.downstream.gated_servers import save_gated_server
from planwarden.tools.downstream.listing_cache import file_stem
from planwarden.tools.downstream.servers import FOLDER
from planwarden.tools.downstream.transports.child import MAX_LINE_BYTES, READ_BYTES, LineReader
from planwarden.tools.downstream.transports.log import ServerLog

logger = logging.getLogger(__name__)

HEADSTART_S = 0.5
"""How long opening waits for a call: the first messages of a host need no store, and pass before it."""


class Gate:
    """Answers calls once the store is open. If that fails, each call is answered with the reason, and nothing runs."""

    def __init__(self) -> None:
        self.has_work = anyio.Event()
        self.settled = anyio.Event()
        self.calls: GatedCalls | None = None
        self.tools: GatedTools | None = None
        self.failure: PlanwardenError = StoreError("planwarden is about to end")
        self.relay: Relay | None = None
        self.exit_code = 0
        """Of the process, after a signal."""

    async def handle(self, frame: Frame) -> bytes | None:
        self.has_work.set()
        await self.settled.wait()
        if self.calls is None or self.relay is None:
            raise self.failure
        result = await (self.calls.answer(frame) if frame.method == "tools/call" else self.calls.answer_task(frame))
        if result is None:
            return None
        if self.relay.envelope:
            result = {"resultType": "complete", **result}
        return frames.build_result(frame.request_id, result)

    def note_change(self) -> None:
        if self.tools is not None:
            self.tools.note_change()


def limit_servers(settings: Settings, config: ServerConfig) -> Settings:
    """Return the settings with the wrapped server in the place of what the home remembers of it.

    Raises `UsageError`: planwarden.json has a server whose tools would be named alike.
    """
    others = [other for other in settings.servers.configs if other.slug != config.slug]
    if any(other.slug == config.slug and not other.is_gated for other in settings.servers.configs):
        raise UsageError(f"planwarden.json has a server {config.name!r}; choose another name with --name")
    # It is never started by what starts the others: its one process belongs to the relay.
    own = dataclasses.replace(config, is_disabled=True)
    return replace(settings, servers=ServerList((*others, own), settings.servers.notes))


async def serve_gate(settings: Settings, config: ServerConfig, wire: TextIO) -> None:
    """Serve until the host closes standard input, or until SIGINT or SIGTERM.

    Raises:
        UsageError: a setting, a tool or the name is not usable; nothing was served.
    """
    settings = limit_servers(settings, config)
    warden = Warden(settings=settings, whole_process=True)
    write_lock, ended = anyio.Lock(), anyio.Event()

    async def write(line: bytes) -> None:
        async with write_lock:
            await anyio.to_thread.run_sync(_write, wire, line)

    gate = Gate()
    log = ServerLog(settings.home / FOLDER / f"{file_stem(config)}.log")
    async with anyio.create_task_group() as tasks:
        gate.relay = relay = Relay(config, log, write, tasks)
        relay.calls = gate

        async def read_host() -> None:
            try:
                async for line in _read_lines():
                    await relay.handle_host_line(line)
            finally:
                ended.set()
                gate.has_work.set()

        tasks.start_soon(read_host)
        tasks.start_soon(_end_on_signal, ended, gate)
        try:
            with anyio.move_on_after(HEADSTART_S):
                await gate.has_work.wait()
            if not ended.is_set():
                async with _open(gate, warden, settings, config):
                    await ended.wait()
        except PlanwardenError as error:
            logger.error("%s", error.message)
            gate.failure = error
            gate.settled.set()
            await ended.wait()
        tasks.cancel_scope.cancel()
    if gate.exit_code:
        # Only the end of file would stop the thread that reads the input.
        sys.stderr.flush()
        os._exit(gate.exit_code)


@asynccontextmanager
async def _open(gate: Gate, warden: Warden, settings: Settings, config: ServerConfig) -> AsyncGenerator[None]:
    """Open the store, the engine and the inbox, and answer calls while the block runs."""
    assert gate.relay is not None
    async with warden:
        service = warden.service
        await anyio.to_thread.run_sync(save_gated_server, settings.home, config)
        running = RunningGates(service.store)
        on_listing = partial(running.open, service.owner, config.slug)
        tools = GatedTools(gate.relay, warden.tools, settings.apply_to, settings.home, on_listing)
        await tools.load()
        calls = GatedCalls(service, settings, gate.relay, tools)
        async with with_launcher(settings, service), anyio.create_task_group() as tasks:
            stop = service.listen(calls.build_listener(tasks))
            try:
                gate.tools, gate.calls = tools, calls
                gate.settled.set()
                yield
            finally:
                gate.calls = None
                stop()
                with anyio.CancelScope(shield=True):
                    await running.close(service.owner)
                tasks.cancel_scope.cancel()


def _write(wire: TextIO, line: bytes) -> None:
    try:
        wire.buffer.write(line)
        wire.buffer.flush()
    except (BrokenPipeError, ValueError):
        # The host has gone; the end of its input ends the gate.
        return


async def _read_lines() -> AsyncGenerator[bytes]:
    """Yield the lines of standard input, from which no child process and no tool reads any more."""
    wire = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    lines = LineReader(MAX_LINE_BYTES)
    while chunk := await anyio.to_thread.run_sync(os.read, wire, READ_BYTES, abandon_on_cancel=True):
        for line in lines.feed(chunk):
            if isinstance(line, bytes):
                yield line
            else:
                # It is refused as what it is, no JSON.
                yield line.head


async def _end_on_signal(ended: anyio.Event, gate: Gate) -> None:
    """End in order on a signal."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            gate.exit_code = 128 + number
            ended.set()
            gate.has_work.set()
            return
