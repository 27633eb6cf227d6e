"""Lets requests wait for an open service, their caller's turn, the end of an execution, or a person's decision.

The service is opened in the background after the first answers, which do not need it. Opening imports most of
planwarden. Even on another thread, the imports would slow down the thread that answers. So opening begins when a
request needs the service, or after `HEADSTART_S`. If the store cannot be opened, the server continues, and every call
that needs the service returns the reason to its caller.

A caller that sends many requests delays its own, not those of other callers. Only a few tool calls of each caller run
at a time; the caller's other calls wait in a line. Calls that become tasks, and reads of resources, take no turn. A
call that runs longer than `WORK_S` probably waits for a person, a tool or a model, so the caller's next call begins. A
caller that is alone never waits.

While a request waits for an execution or a person, it reports progress to clients that ask for it. The engine runs the
execution. If a request is cancelled or its client is gone, only the request's waiting ends.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from planwarden.agent.common.errors import PlanwardenError, StoreError, count_of
from planwarden.agent.common.task_groups import keep_running
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.api.service import Service
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.status_text import describe_next_attempt
from planwarden.server.views.suspension import Suspension

logger = logging.getLogger(__name__)

HEADSTART_S = 0.25
"""How long opening waits unless a request needs the service: enough for hosts' first requests, too short to notice."""
MAX_AT_ONCE = 2
"""How many requests of one caller may run at a time while other callers are active too."""
WORK_S = 1.0
SEEN_S = 2.0
"""How long a caller counts as active after its last request."""
HEARTBEAT_S = 3.0
"""How often progress is repeated, for clients whose time limit restarts with every report."""
STREAMED_CHARS = 200
"""The most characters from the end of an unfinished answer that a report shows."""

AnyContext = Context[Any, Any]
ServiceOpener = Callable[[], AbstractAsyncContextManager[Service]]


class LazyService:
    """The service of one running server, and the principal of the current request."""

    def __init__(self, opening: ServiceOpener, principal: Callable[[], str]) -> None:
        self._opening = opening
        self.principal = principal
        """The function that returns the principal of the request that is being served."""
        self.listener_tasks: TaskGroup
        """The tasks that outlive their request. They must not raise; a server that stops cancels them."""
        self._service: Service | None = None
        self._failure: PlanwardenError | None = None
        self._wanted = anyio.Event()
        self._settled = anyio.Event()
        self._closing = anyio.Event()

    async def service(self) -> Service:
        """Return the service once it is open; open it if necessary. Raises the error that prevented opening."""
        self._wanted.set()
        await self._settled.wait()
        if self._service is None:
            raise self._failure or StoreError("the server is shutting down")
        return self._service

    @asynccontextmanager
    async def run(self) -> AsyncGenerator["LazyService"]:
        """Open and close the service in one task of its own: a task group must exit in the task that entered it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._open_until_closed)
            try:
                async with anyio.create_task_group() as self.listener_tasks:
                    yield self
                    self.listener_tasks.cancel_scope.cancel()
            finally:
                self._closing.set()
                self._wanted.set()

    async def _open_until_closed(self) -> None:
        """Open the service, and close it at the end. A shield lets even a cancelled server close its store; closing
        takes only as long as the engine allows."""
        try:
            with anyio.move_on_after(HEADSTART_S):
                await self._wanted.wait()
            if self._closing.is_set():
                # No request needed the service, so there is nothing to close.
                return
            with anyio.CancelScope(shield=True):
                async with self._opening() as service:
                    self._service = service
                    self._settled.set()
                    await self._closing.wait()
        except PlanwardenError as error:
            if self._settled.is_set():
                raise
            logger.error("cannot open the store: %s", error.message)
            self._failure = error
        finally:
            self._service = None
            self._settled.set()


ServiceContext = ServerRequestContext[LazyService, Any]


@contextmanager
def translate_errors(code: int = INTERNAL_ERROR) -> Generator[None]:
    """Raise each `PlanwardenError` as an error of the protocol, for methods whose results have no place for errors."""
    try:
        yield
    except PlanwardenError as error:
        raise MCPError(code=code, message=f"{error.code}: {error.message}") from None


class _Line(msgspec.Struct):
    """The requests of one caller."""

    at_work: int = 0
    waiting: deque[anyio.Event] = msgspec.field(default_factory=deque[anyio.Event])
    seen_at: float = 0.0


class Turns:
    """The lines of all callers of one server."""

    def __init__(self, work_s: float = WORK_S) -> None:
        self._work_s = work_s
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def take(self, principal: str) -> AsyncGenerator[None]:
        """Wait for the caller's turn, then run the block; the turn ends with the block, or after `work_s` seconds."""
        loop = asyncio.get_running_loop()
        line = self._find_line(principal, loop.time())
        if line.at_work >= MAX_AT_ONCE and len(self._lines) > 1:
            await _wait(line)
        else:
            line.at_work += 1
        # The turn ends with the block or the timer, whichever is first. The list makes sure that it ends only once.
        turn = [line]
        timer = loop.call_later(self._work_s, _end, turn)
        try:
            yield
        finally:
            timer.cancel()
            _end(turn)
            line.seen_at = loop.time()

    def _find_line(self, principal: str, now: float) -> _Line:
        """Return the caller's line; forget the lines of callers that no longer send requests."""
        self._lines = {
            name: line
            for name, line in self._lines.items()
            if line.at_work or line.waiting or now - line.seen_at <= SEEN_S
        }
        line = self._lines.setdefault(principal, _Line())
        line.seen_at = now
        return line


async def _wait(line: _Line) -> None:
    """Wait for a turn. When this function returns, `at_work` already counts the turn."""
    turn = anyio.Event()
    line.waiting.append(turn)
    try:
        await turn.wait()
    except BaseException:
        if turn.is_set():
            _end([line])
        else:
            line.waiting.remove(turn)
        raise


def _end(turn: list[_Line]) -> None:
    if turn:
        line = turn.pop()
        line.at_work -= 1
        if line.waiting and line.at_work < MAX_AT_ONCE:
            line.at_work += 1
            line.waiting.popleft().set()


async def wait_with_progress(
    service: Service, execution: ExecutionState, seconds: float | None, context: AnyContext
) -> ExecutionState:
    """Return the execution when it stops running, or after `seconds` (None: its option `wait_seconds`).

    Raises:
        PlanwardenError: the store failed.
    """
    limit_s = execution.options.wait_seconds if seconds is None else seconds
    if execution.status != "running" or not limit_s:
        return execution
    async with keep_running(partial(_report_progress, service, execution.execution_id, context)):
        return await service.wait(execution, limit_s)


async def wait_until_decided(service: Service, suspension: Suspension, context: AnyContext) -> None:
    """Report progress until the question is no longer open."""

    def describe(execution: ExecutionState) -> str | None:
        state = execution.suspensions.get(suspension.suspension_id)
        return None if state is None or not state.is_open else "waiting for the person"

    await _report_until(service, suspension.execution_id, context, describe)


async def wait_for_decision(
    service: Service, suspension: Suspension, seconds: float | None, context: AnyContext
) -> None:
    """Wait until the question is no longer open, or for `seconds` (None: the execution's option `wait_seconds`)."""
    execution = await service.find(suspension.execution_id)
    with anyio.move_on_after(execution.options.wait_seconds if seconds is None else seconds):
        await wait_until_decided(service, suspension, context)


async def _report_progress(service: Service, execution_id: str, context: AnyContext) -> None:
    """Report commits while the execution runs and, at most twice a second, text that a model streams."""

    def describe(execution: ExecutionState) -> str | None:
        is_running = execution.status == "running"
        return format_progress(execution, service.streamed_text(execution_id)) if is_running else None

    with suppress(PlanwardenError):
        await _report_until(service, execution_id, context, describe)


async def _report_until(
    service: Service, execution_id: str, context: AnyContext, describe: Callable[[ExecutionState], str | None]
) -> None:
    """Send a numbered notification after each change and each heartbeat, until `describe` returns None."""
    for beats in count(1):
        execution = await service.find(execution_id)
        message = describe(execution)
        if message is None:
            return
        await context.report_progress(beats, message=message)
        with anyio.move_on_after(HEARTBEAT_S):
            await service.wait_for_change(execution)


def format_progress(execution: ExecutionState, streamed_text: str = "") -> str:
    """Return the progress of the execution in the engine's own words; the end of `streamed_text` follows in quotes."""
    if streamed_text:
        ending = escape_text(streamed_text[-STREAMED_CHARS:])[-STREAMED_CHARS:]
        return f'{format_progress(execution)}; writing: "...{ending}"'
    outage = describe_next_attempt(execution) if execution.open_suspensions else ""
    waiting_text = f"; {outage}" if outage else ""
    if not execution.steps:
        return f"planning{waiting_text}"
    running = [name for name in execution.frontier if execution.steps[name].status == "in_progress"]
    running_text = f"; running {', '.join(running[:5])}" if running else ""
    return f"{execution.ended_steps} of {count_of(len(execution.steps), 'step')} done{running_text}{waiting_text}"
