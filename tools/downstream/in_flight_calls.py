"""Calls in flight to a downstream server, and the questions that the server asks in the middle of one.

Before 2026-07-28 a server asks while a call is open and waits for the answer there, so the call must stay open. It runs
in a task of its own; a caller waits for its end or for a question. A call with a question outlives that wait. It ends
with the answer, with the connection or with the process; after the last two, only the log knows the call.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from pydantic import JsonValue

from planwarden.agent.common.imports import LazyModule
from planwarden.tools.downstream.elicitation import BadElicitation, ServerElicitation, read_elicitation

if TYPE_CHECKING:
    import mcp
else:
    mcp = LazyModule("mcp")

logger = logging.getLogger(__name__)

MAX_HELD = 16
"""Calls of one server that may wait for an answer; the questions of further ones are cancelled."""
CANCEL_S = 2.0

Answer = dict[str, JsonValue]
"""An `mcp.types.ElicitResult` as JSON."""


@dataclass(eq=False)
class InFlightCall:
    """One call, from sending it to its end."""

    execution_id: str
    answer_at_once: Callable[[ServerElicitation], Answer | None] | None = None
    """Answers a question without a person, or returns None to ask one."""
    elicitation: ServerElicitation | None = None
    """The open question."""
    result: Any = None
    error: Exception | None = None
    is_over: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _ended: anyio.Event = field(default_factory=anyio.Event)
    _answer: Answer | None = None
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _ask_lock: anyio.Lock = field(default_factory=anyio.Lock)

    async def run(self, send: Callable[[], Awaitable[Any]]) -> None:
        try:
            with self.scope:
                self.result = await send()
        # The caller that waits for the call raises it.
        except Exception as error:
            logger.debug("a call ended with an error", exc_info=True)
            self.error = error
        finally:
            self.is_over = True
            self._ended.set()
            self._answered.set()
            self._changed.set()

    async def next_elicitation(self) -> ServerElicitation | None:
        """Returns the next question, or None when the call is over. Cancelling this wait cancels the call."""
        try:
            await self._changed.wait()
        except BaseException:
            self.scope.cancel()
            # Gives the SDK time to tell the server.
            with anyio.move_on_after(CANCEL_S, shield=True):
                await self._ended.wait()
            raise
        self._changed = anyio.Event()
        return None if self.is_over else self.elicitation

    def reply(self, answer: Answer) -> None:
        """Answer the open question."""
        self._answer, self.elicitation = answer, None
        self._answered.set()

    async def ask(self, elicitation: ServerElicitation) -> Answer:
        """Returns the answer to a question of the server. Asks one question at a time."""
        async with self._ask_lock:
            known = self.answer_at_once(elicitation) if self.answer_at_once is not None else None
            if known is not None or self.is_over:
                return known or {"action": "cancel"}
            self.elicitation, self._answer, self._answered = elicitation, None, anyio.Event()
            self._changed.set()
            await self._answered.wait()
            return self._answer or {"action": "cancel"}


class InFlightCalls:
    """The calls of one connection to one server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._open: list[InFlightCall] = []
        self._held: dict[str, InFlightCall] = {}
        """Calls that wait for an answer, by the id that is stored with their question."""

    def begin(self, tasks: TaskGroup, call: InFlightCall, send: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> None:
            self._open.append(call)
            try:
                await call.run(send)
            finally:
                self._open.remove(call)

        tasks.start_soon(run)

    def hold(self, name: str, call: InFlightCall) -> bool:
        """Hold a call that waits for an answer. Returns False when `MAX_HELD` calls already wait."""
        if len(self._held) >= MAX_HELD:
            return False
        self._held[name] = call
        return True

    def take(self, name: str) -> InFlightCall | None:
        """Returns the held call of that id, if this process still has it, and stops holding it."""
        return self._held.pop(name, None)

    def cancel_held(self, execution_id: str) -> None:
        """End the calls of an execution that wait for an answer."""
        for name in [name for name, call in self._held.items() if call.execution_id == execution_id]:
            self._held.pop(name).scope.cancel()

    async def handle_elicitation(
        self, params: "mcp.types.ElicitRequestParams"
    ) -> "mcp.types.ElicitResult | mcp.types.ErrorData":
        """Returns the reply to a question that the server asks in the middle of a call."""

        # Nothing on the wire says which call a question belongs to. A wrong guess would show it to another user.
        if len({call.execution_id for call in self._open}) != 1:
            logger.warning(
                "server %r asked a question while calls of several executions, or none, were open; refused",
                self._server,
            )
            return mcp.types.ErrorData(
                code=mcp.types.INVALID_REQUEST, message="the question belongs to no single call in progress"
            )
        try:
            elicitation = read_elicitation(params)
        except BadElicitation as error:
            logger.warning("server %r asked a question that cannot be shown: %s", self._server, error)
            return mcp.types.ErrorData(code=mcp.types.INVALID_REQUEST, message=str(error))
        return mcp.types.ElicitResult.model_validate(await self._open[-1].ask(elicitation))
