"""Opens a gate: the relay at once; the store and the engine when a call needs them, or after `HEADSTART_S`."""

import dataclasses
import logging
import math
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TextIO

import anyio
import anyio.to_thread
from msgspec.structs import replace

from planwarden.agent.common.errors import PlanwardenError, StoreError, UsageError
from planwarden.server.gate.relay import Host, Relay, Upstream
from planwarden.server.gate.upstream import ProcessUpstream
from planwarden.server.settings.configuration import Settings
from planwarden.tools.downstream.child_process import MAX_LINE_BYTES, READ_BYTES, LineReader, OversizedLine, ServerLog
from planwarden.tools.downstream.config import ServerConfig, ServerList
from planwarden.tools.downstream.listing import FOLDER, file_stem

logger = logging.getLogger(__name__)

Write = Callable[[bytes], Awaitable[None]]

HEADSTART_S = 0.5
"""Seconds after which the store opens even if no call has come; a host's first messages pass without a store."""
LAST_WRITE_S = 1.0
"""Seconds for which a gate that ends waits for a host that does not read."""


def open_relay(config: ServerConfig, home: Path, host: Host) -> Relay:
    """Return the relay to a server, which starts when a message needs it."""
    if config.url is None:
        upstream = ProcessUpstream(config, ServerLog(home / FOLDER / f"{file_stem(config.name)}.log"))
    else:
        # A local server needs no SDK, whose import takes longer than everything else here.
        upstream: Upstream = import_module("planwarden.server.gate.address").AddressUpstream(config)
    return Relay(config, upstream, host)


def limit_servers(settings: Settings, config: ServerConfig) -> Settings:
    """Return the settings with `config`, the wrapped server, in place of the home's own entry for that server.

    Raises `UsageError`: planwarden.json has a server whose tools would get the same names.
    """
    others = [other for other in settings.servers.configs if other.slug != config.slug]
    if any(other.slug == config.slug and not other.is_gated for other in settings.servers.configs):
        raise UsageError(f"planwarden.json has a server {config.name!r}; choose another name with --name")
    # The entry is disabled, because only the relay may start a process of this server.
    own = dataclasses.replace(config, is_disabled=True)
    return replace(settings, servers=ServerList((*others, own), settings.servers.notes))


async def serve_gate(settings: Settings, config: ServerConfig, wire: TextIO) -> None:
    """Serve one server until the host closes standard input or no longer reads, or until SIGINT or SIGTERM.

    Raises:
        UsageError: the name or the list of servers is not usable; nothing was served.
    """
    await _serve(limit_servers(settings, config), [config], wire)


async def serve_gates(settings: Settings, wire: TextIO) -> None:
    """Serve all servers of planwarden.json behind one connection. Ends like `serve_gate`, with the same errors."""
    configs = [config for config in settings.servers.configs if config.can_start and not config.is_gated]
    if not configs:
        raise UsageError("planwarden.json has no server; name one: planwarden gate -- COMMAND ARGUMENT...")
    await _serve(settings, configs, wire)


async def _serve(settings: Settings, configs: Sequence[ServerConfig], wire: TextIO) -> None:
    """Pass messages until the host leaves or a signal comes; open the store for a call, or after `HEADSTART_S`."""
    write_lock, ended, signals = anyio.Lock(), anyio.Event(), list[int]()
    # The scope of the line that is being written. Cancelling a request must not cancel it.
    writing = anyio.CancelScope()
    last_write_at = math.inf

    async def write(line: bytes) -> None:
        nonlocal writing
        async with write_lock:
            is_written = False
            with anyio.CancelScope(shield=True, deadline=last_write_at) as writing:
                is_written = await anyio.to_thread.run_sync(_write, wire, line, abandon_on_cancel=True)
            if not is_written:
                # The host is gone: never return, so that no line counts as written. The task that reads may wait here.
                ended.set()
                await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        if configs[0].is_gated:
            host = Host(write, tasks)
        else:
            host: Host = import_module("planwarden.server.gate.server_group").ServerGroup(write, tasks)
        relays = [open_relay(config, settings.home, host) for config in configs]
        tasks.start_soon(_read_host, host, ended)
        tasks.start_soon(_end_on_signal, host, ended, signals)
        try:
            with anyio.move_on_after(HEADSTART_S):
                await host.needs_store.wait()
            if not ended.is_set():
                # The engine loads slowly, and messages pass while it loads.
                judging = await anyio.to_thread.run_sync(import_module, "planwarden.server.gate.judging")
                async with judging.open_gates(relays, settings):
                    host.is_opened.set()
                    await ended.wait()
        except PlanwardenError as error:
            logger.error("%s", error.message)
            host.fail(error)
        except Exception:
            # Failed imports must end here too, or the thread that reads the input would keep the host waiting.
            logger.exception("planwarden failed")
            host.fail(StoreError("planwarden failed; see its log"))
        await ended.wait()
        tasks.cancel_scope.cancel()
        writing.deadline = last_write_at = anyio.current_time() + LAST_WRITE_S
    if signals or writing.cancelled_caught:
        # The thread that reads the input would stop only at its end, and one that writes only when the host reads.
        sys.stderr.flush()
        os._exit(128 + signals[0] if signals else 0)


def _write(wire: TextIO, line: bytes) -> bool:
    try:
        wire.buffer.write(line)
        wire.buffer.flush()
    except (BrokenPipeError, ValueError):
        return False
    return True


async def _read_host(host: Host, ended: anyio.Event) -> None:
    try:
        async for line in _read_lines():
            await host.handle_line(line)
    finally:
        ended.set()
        host.needs_store.set()


async def _read_lines() -> AsyncGenerator[bytes | OversizedLine]:
    """Take standard input away from child processes and tools, and yield its lines."""
    wire = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    lines = LineReader(MAX_LINE_BYTES)
    while chunk := await anyio.to_thread.run_sync(os.read, wire, READ_BYTES, abandon_on_cancel=True):
        for line in lines.feed(chunk):
            yield line


async def _end_on_signal(host: Host, ended: anyio.Event, numbers: list[int]) -> None:
    """End cleanly on a signal, whose number is added to `numbers`."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            numbers.append(number)
            ended.set()
            host.needs_store.set()
            return
