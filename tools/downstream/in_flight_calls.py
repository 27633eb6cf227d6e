"""Calls in flight to a downstream server: the last check before a call is sent, and the server's questions during it.

A call that waited for its turn may no longer be ours to send. The task that sends a request sets `send_check`; the
transport calls that check immediately before it writes the request.

Before revision 2026-07-28, a server that asks during a call waits for the answer, so the call must stay open. Each call
runs in its own task, and the caller waits until the call ends or the server asks. After a question the caller stops
waiting, but the call goes on until the answer. If the connection or process ends first, only the log knows the call.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio

from planwarden.tools.downstream.elicitation import Answer, BadElicitation, ServerElicitation, read_elicitation
from planwarden.tools.downstream.sdk import mcp

logger = logging.getLogger(__name__)

SendCheck = Callable[[], Coroutine[object, object, None]]
"""A function that raises `LeaseLost` when the request must not be sent."""

NOT_SENT = -32096
"""Our code for a request that did not reach the server, or that the server refused unread."""
LOST = -32095
"""Our code for a request that was sent and not answered."""
TOO_LARGE = -32097
"""Our code for an answer that was too large to be read."""
MAX_HELD = 16
"""The most calls of one server that may wait for an answer; the questions of further calls are cancelled."""
CANCEL_S = 2.0
CANCEL: Answer = {"action": "cancel"}

send_check: ContextVar[SendCheck | None] = ContextVar("send_check", default=None)


@dataclass(eq=False)
class InFlightCall:
    """One call, from sending it to its end."""

    execution_id: str
    label: str = ""
    """The tool's name in the catalogue; empty if the catalogue does not have the tool."""
    answer_at_once: Callable[[ServerElicitation], Answer | None] = lambda elicitation: None
    """A function that answers a question without a person, or returns None so that a person is asked."""
    elicitation: ServerElicitation | None = None
    """The open question."""
    result: Any = None
    error: Exception | None = None
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
        # The caller that waits for the call raises this error.
        except Exception as error:
            logger.debug("a call ended with an error", exc_info=True)
            self.error = error
        finally:
            for event in (self._ended, self._answered, self._changed):
                event.set()

    async def next_elicitation(self) -> ServerElicitation | None:
        """Return the next question, or None when the call is over. Cancelling this wait cancels the call."""
        try:
            await self._changed.wait()
        except BaseException:
            self.scope.cancel()
            # Give the SDK time to tell the server.
            with anyio.move_on_after(CANCEL_S, shield=True):
                await self._ended.wait()
            raise
        self._changed = anyio.Event()
        return None if self._ended.is_set() else self.elicitation

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def reply(self, answer: Answer) -> None:
        """Answer the open question."""
        self._answer, self.elicitation = answer, None
        self._answered.set()

    async def ask(self, elicitation: ServerElicitation) -> Answer:
        """Return the answer to a question of the server. A second question waits for the first."""
        async with self._ask_lock:
            ready = self.answer_at_once(elicitation)
            if ready is not None or self._ended.is_set():
                return ready or CANCEL
            self.elicitation, self._answer, self._answered = elicitation, None, anyio.Event()
            self._changed.set()
            await self._answered.wait()
            return self._answer or CANCEL


class InFlightCalls:
    """The calls of one connection to one server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._open: list[InFlightCall] = []
        self._held: dict[str, InFlightCall] = {}
        """Calls that wait for an answer, by the id that is stored with their question."""

    async def run(self, call: InFlightCall, send: Callable[[], Awaitable[Any]]) -> None:
        self._open.append(call)
        try:
            await call.run(send)
        finally:
            self._open.remove(call)

    def hold(self, name: str, call: InFlightCall) -> bool:
        """Hold a call that waits for an answer. Return False when `MAX_HELD` calls already wait."""
        if len(self._held) >= MAX_HELD:
            # Calls of an earlier connection ended with that connection, and their questions may never be answered.
            waiting = {name: each for name, each in self._held.items() if not each.has_ended or each.result is not None}
            self._held = waiting
        if len(self._held) >= MAX_HELD:
            return False
        self._held[name] = call
        return True

    def take(self, name: str) -> InFlightCall | None:
        """Return the held call of that id, if this process still has it, and stop holding it."""
        return self._held.pop(name, None)

    def cancel_held(self, execution_id: str) -> None:
        """Cancel those calls of an execution that wait for an answer."""
        for name in [name for name, call in self._held.items() if call.execution_id == execution_id]:
            self._held.pop(name).scope.cancel()

    async def handle_elicitation(
        self, context: object, params: "mcp.types.ElicitRequestParams"
    ) -> "mcp.types.ElicitResult | mcp.types.ErrorData":
        """Return the reply to a question that the server asks in the middle of a call."""
        try:
            # Nothing on the wire says which call a question belongs to. A wrong guess would show it to another user.
            if len({call.execution_id for call in self._open}) != 1:
                raise BadElicitation("the question belongs to no single call in progress")
            elicitation = read_elicitation(params)
        except BadElicitation as error:
            logger.warning("server %r asked a question that is refused: %s", self._server, error)
            return mcp.types.ErrorData(code=mcp.types.INVALID_REQUEST, message=str(error))
        return mcp.types.ElicitResult.model_validate(await self._open[-1].ask(elicitation))
