"""Runs a downstream server as a child process: starts it, limits the lines that it writes, keeps its log and ends it.

Others read its messages: `stdio_transport.py` speaks MCP with it through the SDK, and the gate passes its lines on.
"""

import asyncio
import logging
import math
import os
import re
import signal
import subprocess
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec

from planwarden.agent.common.errors import ToolError
from planwarden.tools.downstream.config import ServerConfig

MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_LOG_LINE_BYTES = 8 * 1024
READ_BYTES = 64 * 1024
EDGE_BYTES = 512
"""Bytes kept from each end of an oversized line, because either end may contain the id of the answered request."""
ENDLESS = 16
"""How many times its limit a message may have before planwarden stops waiting for its end."""
PAUSE_S = 0.01
GRACE_S, WATCH_S = 1.0, 0.25
END_S = 2.0
"""How long to wait for the end of a child whose pipes are closed; a busy machine reports that end late."""
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_RESULT = re.compile(rb'"(?:result|params|error)"\s*:')

MAX_LOG_BYTES = 512 * 1024
"""The most bytes in each of the two files of a log."""
MAX_LINE_CHARS = 2_000
_SDK_LOGGERS = ("client", "mcp.client.streamable_http")

OnLost = Callable[[str], None]
"""Takes the reason why the connection is lost."""


class OversizedLine(msgspec.Struct, frozen=True):
    """The beginning and the end of a line beyond the limit."""

    head: bytes
    tail: bytes

    @property
    def request_id(self) -> int | None:
        """The id of the request that the line answers, if the head or the tail contains that id."""
        result = _RESULT.search(self.head)
        match = _ID.search(self.head[: result.start()] if result else b"")
        if match is None:
            *_, match = [None, *_ID.finditer(self.tail[self.tail.rfind(b'"jsonrpc"') :])]
        return int(match[1]) if match is not None else None

    @property
    def answered_id(self) -> int | None:
        """The `request_id`; None if the line is not a JSON object, or is a log line that quotes a request."""
        is_answer = self.head.startswith(b"{") and b'"method"' not in self.head + self.tail
        return self.request_id if is_answer else None


def cut_line(line: bytes) -> OversizedLine:
    return OversizedLine(line[:EDGE_BYTES], line[-EDGE_BYTES:])


class LineReader:
    """Splits a stream of bytes into lines, and keeps at most `limit` bytes of an unfinished line.

    An unfinished line of more than `endless` bytes yields an `OversizedLine` that names no request.
    """

    def __init__(self, limit: int, endless: float = math.inf) -> None:
        self._limit, self._endless = limit, endless
        self._buffer = bytearray()
        self._head: bytes | None = None
        """The head of the current line, if the line is already too long."""
        self._size = 0
        """The number of bytes that the current line has so far."""

    def feed(self, chunk: bytes) -> list[bytes | OversizedLine]:
        *ends, rest = chunk.split(b"\n")
        lines: list[bytes | OversizedLine] = []
        for part in ends:
            self._append(part)
            line = bytes(self._buffer)
            lines.append(line if self._head is None else OversizedLine(self._head, line))
            self._buffer.clear()
            self._head, self._size = None, 0
        self._append(rest)
        if self._size > self._endless:
            lines.append(OversizedLine(b"", b""))
        return lines

    def _append(self, part: bytes) -> None:
        self._buffer += part
        self._size += len(part)
        if self._head is None and len(self._buffer) > self._limit:
            self._head = bytes(self._buffer[:EDGE_BYTES])
        if self._head is not None:
            del self._buffer[:-EDGE_BYTES]


def shorten_sdk_log() -> None:
    """Keep tracebacks, which quote the server's invalid messages, out of the SDK's log. May be called again."""
    for name in _SDK_LOGGERS:
        logging.getLogger(name).addFilter(_drop_traceback)


def _drop_traceback(record: logging.LogRecord) -> bool:
    """Keep every record, but remove the traceback of one about an invalid message: the fault is the server's."""
    # The HTTP client's error for an answer beyond a limit is a `RuntimeError`.
    if record.exc_info and isinstance(record.exc_info[1], ValueError | RuntimeError):
        record.exc_info = None
    return True


@dataclass
class ServerLog:
    """The log of one server."""

    path: Path
    _descriptor: int | None = None
    _size: int = 0

    def write(self, line: bytes) -> None:
        """Append a line, given without its line break. Do nothing if the file cannot be written to."""
        data = f"{_escape(line[: MAX_LINE_CHARS * 4])}\n".encode()
        with suppress(OSError):
            if self._descriptor is None or self._size + len(data) > MAX_LOG_BYTES:
                self._open(self.path)
            assert self._descriptor is not None
            self._size += os.write(self._descriptor, data)

    def close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _open(self, path: Path) -> None:
        self.close()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            if path.stat().st_size > MAX_LOG_BYTES // 2:
                os.replace(path, path.with_suffix(".old.log"))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(self._descriptor).st_size


def _escape(line: bytes) -> str:
    text = line.decode("utf-8", "replace")[:MAX_LINE_CHARS]
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


class Child(msgspec.Struct, kw_only=True):
    """One running child and its pipes."""

    process: Process
    transport: asyncio.SubprocessTransport
    log: ServerLog
    on_lost: OnLost

    async def report_loss(self, why: str) -> None:
        """Report the loss before the session notices it: the exit code if the process ends in time, otherwise `why`."""
        is_over = await self._ends_within(END_S)
        self.on_lost(f"its process ended with exit code {self.process.returncode}" if is_over else why)

    async def keep_log(self) -> None:
        assert self.process.stderr is not None
        lines = LineReader(MAX_LOG_LINE_BYTES)
        with suppress(OSError):
            while chunk := await self.process.stderr.read(READ_BYTES):
                for line in lines.feed(chunk):
                    self.log.write(line if isinstance(line, bytes) else line.head + b"...")
                # A child that writes nothing but errors must not keep the event loop busy.
                await anyio.sleep(PAUSE_S)

    async def watch(self) -> None:
        """Report the end of the child, even if a child of its own keeps the pipes open."""
        await self._ends_within(math.inf, WATCH_S)
        # Its last output may still be in the pipe, so let it be read first.
        await anyio.sleep(WATCH_S)
        self.on_lost(f"its process ended with exit code {self.process.returncode}")
        await self.close_inbox()

    async def close_inbox(self) -> None:
        """Close the stream of the child's messages; no more will come. Subclasses with such a stream override this."""

    async def stop(self) -> None:
        """Close the child's input, wait, and end its process group, in bounded time."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if not await self._ends_within(GRACE_S):
            self._signal(signal.SIGTERM)
            await self._ends_within(GRACE_S)
        # This also ends the children of a server that has already ended.
        self._signal(signal.SIGKILL)
        await self._ends_within(GRACE_S)
        # Its own children may keep its pipes open.
        with suppress(PermissionError):
            self.transport.close()

    async def _ends_within(self, seconds: float, every_s: float = 0.01) -> bool:
        """Return whether the child ends in time. Poll, as `wait()` also waits for pipes that a grandchild may hold."""
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


async def spawn(config: ServerConfig, environment: Mapping[str, str]) -> tuple[Process, asyncio.SubprocessTransport]:
    """Start the child like `asyncio.create_subprocess_exec`; also return the transport, which can close the pipes."""
    assert config.command is not None
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit=READ_BYTES, loop=loop),
            config.command,
            *config.args,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=config.cwd,
            env=environment,
            start_new_session=True,
        )
        return Process(transport, protocol, loop), transport
    except FileNotFoundError as error:
        what = "working directory" if config.cwd is not None and not config.cwd.is_dir() else "command"
        raise ToolError(f"its {what} {str(error.filename)!r} was not found") from None
    except (OSError, ValueError) as error:
        raise ToolError(f"its command {config.command!r} could not be run: {error}") from None
