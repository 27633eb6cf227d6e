"""Speaks MCP with a downstream server in a child process, over its standard input and output, and limits its lines.

The SDK's own transport accepts lines of any length and passes on every notification, so a server could use both
to fill our memory. Here lines have a limit, messages that we do not use are dropped, and floods are slowed. The child
gets only the variables that the SDK considers safe and the configured ones. Shutting down closes its input,
waits, and ends the process group (https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown).
"""

import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
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

from planwarden.agent.common.errors import PlanwardenError
from planwarden.tools.downstream.bounded_streams import CANCELLED, IncomingMessages, OutgoingMessages
from planwarden.tools.downstream.child_process import (
    ENDLESS,
    MAX_LINE_BYTES,
    READ_BYTES,
    Child,
    LineReader,
    OnLost,
    OversizedLine,
    ServerLog,
    cut_line,
    spawn,
)
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.in_flight_calls import LOST, NOT_SENT, TOO_LARGE, SendCheck, send_check
from planwarden.tools.downstream.value_counter import MAX_VALUES, SLICE_BYTES, ValueCounter

logger = logging.getLogger(__name__)

BURST, PAUSE_S = 100, 0.01
"""After each `BURST` unsolicited lines the reader pauses for `PAUSE_S`, so that the event loop can do other work."""
_WANTED = frozenset({"notifications/progress", CANCELLED, "notifications/subscriptions/acknowledged"})
_TOOLS_CHANGED = "notifications/tools/list_changed"

Item = SessionMessage | Exception
Outgoing = tuple[JSONRPCMessage, SendCheck | None]


class _McpChild(Child, kw_only=True):
    name: str
    on_tools_changed: Callable[[], None]
    inbox: MemoryObjectSendStream[Item]
    outbox: MemoryObjectReceiveStream[Outgoing]
    unsolicited: int = 0
    is_malformed: bool = False
    our_requests: set[int | str] = msgspec.field(default_factory=set[int | str])
    """Ids of our requests that wait for the server's answer."""

    async def read(self) -> None:
        """Pass on the server's messages until its output ends or has an oversized line that answers no request."""
        assert self.process.stdout is not None
        lines = LineReader(MAX_LINE_BYTES, ENDLESS * MAX_LINE_BYTES)
        async with self.inbox:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                while chunk := await self.process.stdout.read(READ_BYTES):
                    for line in lines.feed(chunk):
                        if not await self._handle_line(line):
                            return
            await self.report_loss("it closed its output")

    async def _handle_line(self, line: bytes | OversizedLine) -> bool:
        """Pass on the message in the line. Return False if the line answers no request and is too large to be read."""
        if isinstance(line, bytes) and await _has_too_many_values(line):
            line = cut_line(line)
        if isinstance(line, OversizedLine):
            return await self._handle_oversized(line)
        if not line.strip():
            return True
        message = _read_message(line)
        if message is None and not self.is_malformed:
            self.is_malformed = True
            logger.warning("server %r wrote a line to its output that is not MCP; such lines are dropped", self.name)
        await self._note_answer(_find_answered_request(line, message), is_valid=message is not None)
        if message is not None and self._is_wanted(message):
            await self.inbox.send(SessionMessage(message))
        return True

    async def _note_answer(self, request_id: int | str | None, *, is_valid: bool) -> None:
        if request_id is None or request_id not in self.our_requests:
            self.unsolicited += 1
            if self.unsolicited % BURST == 0:
                await anyio.sleep(PAUSE_S)
        elif is_valid:
            self.our_requests.discard(request_id)
        else:
            await self._fail_request(request_id, LOST, "the answer is not valid MCP")

    def _is_wanted(self, message: JSONRPCMessage) -> bool:
        """Return False for a notification that we do not use, otherwise True. Report a change of the tools."""
        if not isinstance(message, JSONRPCNotification):
            return True
        if message.method == _TOOLS_CHANGED:
            self.on_tools_changed()
        return message.method in _WANTED

    async def _handle_oversized(self, line: OversizedLine) -> bool:
        request_id = line.request_id
        if request_id is None:
            self.on_lost(f"it wrote a line of more than {MAX_LINE_BYTES} bytes or {MAX_VALUES} values")
            return False
        what = f"the answer is larger than {MAX_LINE_BYTES} bytes or {MAX_VALUES} values"
        await self._fail_request(request_id, TOO_LARGE, what)
        return True

    async def _fail_request(self, request_id: int | str, code: int, message: str) -> None:
        self.our_requests.discard(request_id)
        error = ErrorData(code=code, message=message)
        await self.inbox.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))

    async def write(self) -> None:
        assert self.process.stdin is not None
        async with self.outbox:
            try:
                async for message, check in self.outbox:
                    if isinstance(message, JSONRPCRequest):
                        if check is not None and not await self._may_send(message, check):
                            continue
                        self.our_requests.add(message.id)
                    data = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                    self.process.stdin.write(data)
                    await self.process.stdin.drain()
            except OSError:
                await self.report_loss("it closed its input")
                await self.inbox.aclose()

    async def close_inbox(self) -> None:
        await self.inbox.aclose()

    async def _may_send(self, request: JSONRPCRequest, check: SendCheck) -> bool:
        try:
            await check()
        except PlanwardenError as error:
            await self._fail_request(request.id, NOT_SENT, error.message)
            return False
        return True


def _read_message(line: bytes) -> JSONRPCMessage | None:
    """Return the message; None if the line has none. Replace invalid Unicode, such as half of a surrogate pair."""
    with suppress(ValueError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    with suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(line.decode(errors="replace")), ensure_ascii=False)
        return jsonrpc_message_adapter.validate_json(text.encode(errors="replace"), by_name=False)
    return None


def _find_answered_request(line: bytes, message: JSONRPCMessage | None) -> int | str | None:
    if message is None:
        return cut_line(line).answered_id
    return message.id if isinstance(message, JSONRPCResponse | JSONRPCError) else None


async def _has_too_many_values(line: bytes) -> bool:
    """Return whether parsing the line would block the event loop for too long. Let other tasks run while counting."""
    if len(line) <= MAX_VALUES:
        return False
    counter = ValueCounter()
    for start in range(0, len(line), SLICE_BYTES):
        if counter.feed(line[start : start + SLICE_BYTES]):
            return True
        await anyio.lowlevel.checkpoint()
    return False


class _CheckedMessages(OutgoingMessages):
    """Sends each message of the SDK together with the check that the sending task has set."""

    def wrap(self, item: SessionMessage) -> Outgoing:
        return item.message, send_check.get()


@asynccontextmanager
# `Any`, because the SDK's type for the pair of streams has no public name.
async def stdio_transport(
    config: ServerConfig, log: ServerLog, on_lost: OnLost, on_tools_changed: Callable[[], None]
) -> AsyncGenerator[Any]:
    """Start the server and yield its streams. Tasks of this transport call `on_lost` and `on_tools_changed`."""
    # Until the task group can stop the child, a cancellation would leave the child running.
    with anyio.CancelScope(shield=True) as scope:
        process, transport = await spawn(config, {**get_default_environment(), **config.env})
        inbox, received = anyio.create_memory_object_stream[Item](0)
        outgoing, outbox = anyio.create_memory_object_stream[Outgoing](0)
        child = _McpChild(
            process=process,
            transport=transport,
            log=log,
            on_lost=on_lost,
            name=config.name,
            on_tools_changed=on_tools_changed,
            inbox=inbox,
            outbox=outbox,
        )
        async with anyio.create_task_group() as tasks:
            for task in (child.read, child.write, child.keep_log, child.watch):
                tasks.start_soon(task)
            try:
                scope.shield = False
                ids = set[int | str]()
                yield IncomingMessages(received, ids), _CheckedMessages(outgoing, ids)
            finally:
                scope.shield = True
                received.close()
                outgoing.close()
                await child.stop()
                log.close()
                for stream in (inbox, outbox):
                    stream.close()
                tasks.cancel_scope.cancel()
                # Behind the shield, the task group would swallow a cancellation from outside.
                scope.shield = False
