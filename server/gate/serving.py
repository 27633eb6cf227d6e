"""Opens a gate: the relay at once, and the store and the engine when a call needs them or the host is quiet."""

import dataclasses
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from typing import TextIO

import anyio
import anyio.to_thread
from msgspec.structs import replace

from planwarden.agent.common.errors import PlanwardenError, StoreError, UsageError
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.gate import frames
from planwarden.server.gate.calls import GatedCalls
from planwarden.server.gate.frames import Frame
from planwarden.server.gate.relay import Host, Relay, Upstream
from planwarden.server.gate.several import ServerGroup
from planwarden.server.gate.tools import GatedTools, SharedTools
from planwarden.server.gate.upstream import ProcessUpstream
from planwarden.server.inbox.launcher import with_launcher
from planwarden.server.settings.configuration import Settings
from planwarden.storage.gates import RunningGates
from planwarden.tools.downstream.config import LoginLocation, ServerConfig, ServerList
from planwarden.tools.downstream.gated_servers import describe_other_server, save_gated_server
from planwarden.tools.downstream.listing_cache import file_stem
from planwarden.tools.downstream.servers import FOLDER
from planwarden.tools.downstream.transports.child import MAX_LINE_BYTES, READ_BYTES, LineReader
from planwarden.tools.downstream.transports.log import ServerLog

logger = logging.getLogger(__name__)

Write = Callable[[bytes], Awaitable[None]]

HEADSTART_S = 0.5
"""How long opening waits for a call: the first messages of a host need no store, and pass before it."""


class Opening:
    """The store and the engine, which open once. If that fails, each call is answered with the reason."""

    def __init__(self) -> None:
        self.has_work = anyio.Event()
        self.settled = anyio.Event()
        self.failure: PlanwardenError = StoreError("planwarden is about to end")
        self.exit_code = 0
        """Of the process, after a signal."""


class Gate:
    """Answers the calls of one server once the store is open; until then, and if that fails, nothing runs."""

    def __init__(self, opening: Opening, config: ServerConfig, warden: Warden, host: Host) -> None:
        self.opening = opening
        self.calls: GatedCalls | None = None
        self.tools: GatedTools | None = None
        self.config = config
        self._warden = warden
        if config.url is None:
            log = ServerLog(warden.settings.home / FOLDER / f"{file_stem(config)}.log")
            upstream = ProcessUpstream(config, log)
        else:
            # A local server needs no SDK, whose import takes longer than everything else here.
            address = import_module("planwarden.server.gate.address")
            upstream: Upstream = address.AddressUpstream(config, self._find_login)
        self.relay = Relay(config, upstream, host, self)

    async def _find_login(self) -> LoginLocation | None:
        if self.config.login_name is None and self.config.is_gated:
            return None
        await self.open_calls()
        downstream = self._warden.service.downstream
        return None if downstream is None else downstream.login_location(self.config)

    async def handle(self, frame: Frame) -> bytes | None:
        calls = await self.open_calls()
        result = await (calls.answer(frame) if frame.method == "tools/call" else calls.answer_task(frame))
        if result is None:
            return None
        if self.relay.host.envelope:
            result = {"resultType": "complete", **result}
        return frames.build_result(frame.request_id, result)

    async def note_written(self, frame: Frame) -> None:
        if self.calls is not None:
            await self.calls.note_written(frame)

    async def open_calls(self) -> GatedCalls:
        """Return what judges calls. Raises `PlanwardenError`: the store cannot be opened."""
        self.opening.has_work.set()
        await self.opening.settled.wait()
        if self.calls is None:
            raise self.opening.failure
        return self.calls

    async def open_tools(self) -> SharedTools:
        """Return the tools of a server of planwarden.json. Raises `PlanwardenError`: the store cannot be opened."""
        await self.open_calls()
        assert isinstance(self.tools, SharedTools)
        return self.tools

    def note_change(self) -> None:
        if self.tools is not None:
            self.tools.note_change()

    @asynccontextmanager
    async def judging(self, principal: str = LOCAL) -> AsyncGenerator[None]:
        """Answer the calls of the principal while the block runs; the warden is open."""
        service = self._warden.service
        tools = await self._build_tools(service)
        calls = GatedCalls(service, self._warden.settings, self.relay, tools, principal)
        async with anyio.create_task_group() as tasks:
            stop = service.listen(calls.build_listener(tasks))
            try:
                self.tools, self.calls = tools, calls
                yield
            finally:
                self.calls = None
                stop()
                tools.close()
                tasks.cancel_scope.cancel()

    async def _build_tools(self, service: Service) -> GatedTools:
        settings, registry = self._warden.settings, self._warden.tools
        if not self.config.is_gated:
            assert service.downstream is not None
            return SharedTools(self.relay, registry, service.downstream)
        on_listing = partial(RunningGates(service.store).open, service.owner, self.config.slug)
        tools = GatedTools(self.relay, registry, settings.apply_to, settings.home, on_listing)
        await tools.load()
        return tools


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
    """Serve one server until the host closes standard input, or until SIGINT or SIGTERM.

    Raises:
        UsageError: a setting, a tool or the name is not usable; nothing was served.
    """
    await _serve(limit_servers(settings, config), [config], wire)


async def serve_gates(settings: Settings, wire: TextIO) -> None:
    """Serve all servers of planwarden.json behind one connection. Ends and raises as `serve_gate`."""
    configs = [config for config in settings.servers.configs if config.can_start and not config.is_gated]
    if not configs:
        raise UsageError("planwarden.json has no server; name one: planwarden gate -- COMMAND ARGUMENT...")
    await _serve(settings, configs, wire)


async def _serve(settings: Settings, configs: Sequence[ServerConfig], wire: TextIO) -> None:
    """Pass messages between the host and the servers, and open the store when a call needs it."""
    warden, opening = Warden(settings=settings, whole_process=True), Opening()
    write_lock, ended = anyio.Lock(), anyio.Event()

    async def write(line: bytes) -> None:
        async with write_lock:
            if not await anyio.to_thread.run_sync(_write, wire, line):
                # The host has gone; the end of its input ends the gate, and nothing counts as read by the host.
                await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        host = Host(write, tasks) if configs[0].is_gated else ServerGroup(write, tasks)
        gates = [Gate(opening, config, warden, host) for config in configs]
        if isinstance(host, ServerGroup):
            host.members = gates

        async def read_host() -> None:
            try:
                async for line in _read_lines():
                    await host.handle_line(line)
            finally:
                ended.set()
                opening.has_work.set()

        tasks.start_soon(read_host)
        tasks.start_soon(_end_on_signal, ended, opening)
        try:
            with anyio.move_on_after(HEADSTART_S):
                await opening.has_work.wait()
            if not ended.is_set():
                async with _open(gates, warden):
                    opening.settled.set()
                    await ended.wait()
        except PlanwardenError as error:
            logger.error("%s", error.message)
            opening.failure = error
            opening.settled.set()
            await ended.wait()
        tasks.cancel_scope.cancel()
    if opening.exit_code:
        # Only the end of file would stop the thread that reads the input.
        sys.stderr.flush()
        os._exit(opening.exit_code)


@asynccontextmanager
async def _open(gates: Sequence[Gate], warden: Warden) -> AsyncGenerator[None]:
    """Open the store, the engine and the inbox, and answer calls while the block runs."""
    async with warden, AsyncExitStack() as stack:
        slug = ""
        for config in (gate.config for gate in gates if gate.config.is_gated):
            await _keep(config, warden)
            slug = config.slug
        await stack.enter_async_context(announce_gate(warden.service, slug))
        await stack.enter_async_context(with_launcher(warden.settings, warden.service))
        for gate in gates:
            await stack.enter_async_context(gate.judging())
        yield


async def _keep(config: ServerConfig, warden: Warden) -> None:
    """Keep in the home how the wrapped server is reached. Raises `UsageError`: another one has its name."""
    home = warden.settings.home
    other = await anyio.to_thread.run_sync(describe_other_server, home, config)
    living = await RunningGates(warden.service.store).list_living() if other is not None else ()
    if any(gate.server == config.slug for gate in living):
        # Rules and pages could not tell the two apart.
        raise UsageError(
            f"a gate named {config.name!r} runs already, in front of {other}; choose another name with --name"
        )
    await anyio.to_thread.run_sync(save_gated_server, home, config)


@asynccontextmanager
async def announce_gate(service: Service, server: str) -> AsyncGenerator[None]:
    """Let other processes know of the gate while the block runs; without a `server`, of all of planwarden.json."""
    running = RunningGates(service.store)
    await running.open(service.owner, server)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await running.close(service.owner)


def _write(wire: TextIO, line: bytes) -> bool:
    try:
        wire.buffer.write(line)
        wire.buffer.flush()
    except (BrokenPipeError, ValueError):
        return False
    return True


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


async def _end_on_signal(ended: anyio.Event, opening: Opening) -> None:
    """End in order on a signal."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            opening.exit_code = 128 + number
            ended.set()
            opening.has_work.set()
            return
