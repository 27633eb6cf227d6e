"""A downstream server as a child process: MCP over its standard input and output, with every line bounded.

The SDK's own transport takes lines of any length and hands on every notification; a server could fill our memory with
either. Here a line has a limit, what is no message is counted and dropped, and a flood is slowed down to what the loop can
bear. The child gets the SDK's few safe variables and the configured ones, never ours. Shutting down follows
https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown: close its input, wait, end the process group.
"""

import logging
import math
import os
import re
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client import Transport
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from planwarden.agent.common.errors import ToolError
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.transports.log import ServerLog

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_LOG_LINE_BYTES = 8 * 1024
TOO_LARGE = -32097
"""Our code for an answer that came but was too large to be read."""
BURST, PAUSE_S = 100, 0.01
"""After so many messages that nobody asked for the loop has a rest."""
MAX_ASKING = 16
"""Requests of the server that may wait for our answer."""
GRACE_S = 1.0
WATCH_S = 0.25
_EDGE_BYTES = 512
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_RESULT = re.compile(rb'"(?:result|params|error)"\s*:')
_WANTED = frozenset({"notifications/progress", "notifications/cancelled", "notifications/subscriptions/acknowledged"})
_CHANGED = "notifications/tools/list_changed"

Item = SessionMessage | Exception
Lost = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OversizedLine:
    """A line beyond the limit: only its two ends are known."""

    head: bytes
    tail: bytes

    @property
    def request_id(self) -> int | None:
        """The request that it answers, if one of its ends says so."""
        result = _RESULT.search(self.head)
        found = _ID.search(self.head[: result.start()] if result else b"")
        if found is None:
            *_, found = [None, *_ID.finditer(self.tail[self.tail.rfind(b'"jsonrpc"') :])]
        return int(found[1]) if found is not None else None


class LineReader:
    """Cuts a stream of bytes into lines; holds at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()
        self._head: bytes | None = None
        """Of the line that is too long already."""

    def feed(self, chunk: bytes) -> list[bytes | OversizedLine]:
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes | OversizedLine] = []
        for part in ended:
            self._take(part)
            lines.append(self._end())
        self._take(rest)
        return lines

    def _take(self, part: bytes) -> None:
        self._held += part
        if self._head is None and len(self._held) > self._limit:
            self._head = bytes(self._held[:_EDGE_BYTES])
        if self._head is not None:
            del self._held[:-_EDGE_BYTES]

    def _end(self) -> bytes | OversizedLine:
        line = bytes(self._held) if self._head is None else OversizedLine(self._head, bytes(self._held))
        self._held.clear()
        self._head = None
        return line


@dataclass(slots=True)
class _Child:
    """One running child and its pipes."""

    config: ServerConfig
    process: Process
    log: ServerLog
    lost: Lost
    listed_again: Callable[[], None]
    inbox: MemoryObjectSendStream[Item]
    outbox: MemoryObjectReceiveStream[SessionMessage]
    unasked: int = 0
    garbage: int = 0
    asking: set[int | str] = field(default_factory=set[int | str])
    """Its requests that wait for our answer."""
    awaited: set[int | str] = field(default_factory=set[int | str])
    """Our requests that wait for its answer."""

    async def read(self) -> None:
        """Hand on what the server says until it stops, or says something that cannot be handed on."""
        assert self.process.stdout is not None
        lines = LineReader(MAX_LINE_BYTES)
        async with self.inbox:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
                async for chunk in self.process.stdout:
                    for line in lines.feed(chunk):
                        if not await self._line(line):
                            return
            # The end of its output is most often its own end, which says more. Told before the session sees the end.
            is_over = await self._ends_within(WATCH_S)
            self.lost(
                f"its process ended with exit code {self.process.returncode}" if is_over else "it closed its output"
            )

    async def _line(self, line: bytes | OversizedLine) -> bool:
        if isinstance(line, OversizedLine):
            return await self._oversized(line)
        if not line.strip():
            return True
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            if not self.garbage:
                logger.warning("server %r writes to its output what is not MCP; it is dropped", self.config.name)
            self.garbage += 1
            message = None
        if not self._is_awaited(message):
            self.unasked += 1
            if self.unasked % BURST == 0:
                await anyio.sleep(PAUSE_S)
        if message is not None and self._is_wanted(message):
            await self.inbox.send(SessionMessage(message))
        return True

    def _is_awaited(self, message: JSONRPCMessage | None) -> bool:
        """True once for each request of ours."""
        if not isinstance(message, JSONRPCResponse | JSONRPCError) or message.id not in self.awaited:
            return False
        self.awaited.discard(message.id)
        return True

    def _is_wanted(self, message: JSONRPCMessage) -> bool:
        """Answers always; of what nobody asked for only what means something to us, and not too much of that."""
        match message:
            case JSONRPCNotification(method=method):
                if method == _CHANGED:
                    self.listed_again()
                return method in _WANTED
            case JSONRPCRequest(id=request_id):
                if len(self.asking) >= MAX_ASKING:
                    return False
                self.asking.add(request_id)
                return True
            case _:
                return True

    async def _oversized(self, line: OversizedLine) -> bool:
        request_id = line.request_id
        if request_id is None:
            self.lost(f"it wrote a line of more than {MAX_LINE_BYTES} bytes")
            return False
        error = ErrorData(code=TOO_LARGE, message=f"the answer is larger than {MAX_LINE_BYTES} bytes")
        await self.inbox.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))
        return True

    async def write(self) -> None:
        assert self.process.stdin is not None
        try:
            async with self.outbox:
                async for entry in self.outbox:
                    message = entry.message
                    if isinstance(message, JSONRPCRequest):
                        self.awaited.add(message.id)
                    elif isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                        self.asking.discard(message.id)
                    data = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                    await self.process.stdin.send(data)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            self.lost("it closed its input")
            await self.inbox.aclose()

    async def keep_log(self) -> None:
        stream: ByteReceiveStream | None = self.process.stderr
        lines = LineReader(MAX_LOG_LINE_BYTES)
        assert stream is not None
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
            async for chunk in stream:
                for line in lines.feed(chunk):
                    self.log.write(line if isinstance(line, bytes) else line.head + b"...")
                # A child that only complains must not keep the loop busy.
                await anyio.sleep(PAUSE_S)

    async def watch(self) -> None:
        """Notice its end also when a process of its own keeps the pipes open."""
        await self._ends_within(math.inf, WATCH_S)
        # What it wrote before is still in the pipe.
        await anyio.sleep(WATCH_S)
        self.lost(f"its process ended with exit code {self.process.returncode}")
        await self.inbox.aclose()

    async def stop(self) -> None:
        """Close its input, wait, end its process group. Bounded."""
        assert self.process.stdin is not None
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.process.stdin.aclose()
        if not await self._ends_within(GRACE_S):
            self._signal(signal.SIGTERM)
            await self._ends_within(GRACE_S)
        # Also children of a server that has ended itself.
        self._signal(signal.SIGKILL)
        await self._ends_within(GRACE_S)
        # Nothing public closes the pipes of a child whose own children hold them open; the SDK does the same.
        transport = getattr(getattr(self.process, "_process", None), "_transport", None)
        if transport is not None:
            with suppress(PermissionError):
                transport.close()

    async def _ends_within(self, seconds: float, every_s: float = 0.01) -> bool:
        """Asks again and again; `wait()` also waits for pipes, which a grandchild may hold open."""
        deadline = anyio.current_time() + seconds
        while True:
            if self.process.returncode is not None:
                return True
            if anyio.current_time() >= deadline:
                return False
            await anyio.sleep(every_s)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


@asynccontextmanager
async def _connected(
    config: ServerConfig, log: ServerLog, lost: Lost, listed_again: Callable[[], None]
) -> AsyncGenerator[tuple[MemoryObjectReceiveStream[Item], MemoryObjectSendStream[SessionMessage]]]:
    process = await _spawned(config)
    # Nothing is awaited between here and the task group, or a cancellation would leave the child behind.
    inbox, received = anyio.create_memory_object_stream[Item](0)
    sent, outbox = anyio.create_memory_object_stream[SessionMessage](0)
    child = _Child(config, process, log, lost, listed_again, inbox, outbox)
    async with anyio.create_task_group() as tasks:
        for task in (child.read, child.write, child.keep_log, child.watch):
            tasks.start_soon(task)
        try:
            yield received, sent
        finally:
            with anyio.CancelScope(shield=True):
                received.close()
                sent.close()
                await child.stop()
                log.close()
            tasks.cancel_scope.cancel()
    for stream in (inbox, received, sent, outbox):
        stream.close()


def stdio_transport(config: ServerConfig, log: ServerLog, lost: Lost, listed_again: Callable[[], None]) -> Transport:
    """The child's streams. `lost` is told why the connection cannot go on, `listed_again` that its tools changed."""
    return _connected(config, log, lost, listed_again)


async def _spawned(config: ServerConfig) -> Process:
    assert config.command is not None
    environment = {**get_default_environment(), **config.env}
    try:
        return await anyio.open_process(
            [config.command, *config.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=config.cwd,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        what = "working directory" if config.cwd is not None and not config.cwd.is_dir() else "command"
        raise ToolError(f"its {what} {str(error.filename)!r} was not found") from None
    except (OSError, ValueError) as error:
        raise ToolError(f"its command {config.command!r} could not be run: {error}") from None
