"""Calls that are under way to a downstream server, and what the server asks in the middle of one.

Before 2026-07-28 a server asks while a call is open and waits for the answer there, so the call has to stay open: it runs in a
task of its own, and whoever waits for it hears either its end or a question. A call with a question outlives the wait
for it; it ends with the answer, with the connection, or with the process, and after the last two only its log knows it.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from pydantic import JsonValue

from planwarden.tools.downstream.elicitations import BadQuestion, ServerElicitation, read_question

if TYPE_CHECKING:
    from mcp.types import ElicitRequestParams, ElicitResult, ErrorData

logger = logging.getLogger(__name__)

MAX_HELD = 16
"""Calls of one server that wait with a question; a further one is told no."""
CANCEL_S = 2.0

Answer = dict[str, JsonValue]
"""An `ElicitResult` as JSON."""


@dataclass(eq=False)
class InFlightCall:
    """One call, from sending to its end."""

    execution_id: str
    answers: Callable[[ServerElicitation], Answer | None] | None = None
    """Answers at once, without a person, or None to ask one; None for a call that has nobody who could."""
    asked: ServerElicitation | None = None
    """The question that waits for an answer."""
    result: Any = None
    error: Exception | None = None
    is_over: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _news: anyio.Event = field(default_factory=anyio.Event)
    _ended: anyio.Event = field(default_factory=anyio.Event)
    _answer: Answer | None = None
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    async def run(self, send: Callable[[], Awaitable[Any]]) -> None:
        try:
            with self.scope:
                self.result = await send()
        # It belongs to whoever waits for the call.
        except Exception as error:
            logger.debug("a call ended with an error", exc_info=True)
            self.error = error
        finally:
            self.is_over = True
            self._ended.set()
            self._answered.set()
            self._news.set()

    async def heard(self) -> ServerElicitation | None:
        """The next question, or None when the call is over. Whoever is cancelled here cancels the call."""
        try:
            await self._news.wait()
        except BaseException:
            self.scope.cancel()
            # The SDK tells the server before the call ends.
            with anyio.move_on_after(CANCEL_S, shield=True):
                await self._ended.wait()
            raise
        self._news = anyio.Event()
        return None if self.is_over else self.asked

    def reply(self, answer: Answer) -> None:
        """Answer the question that waits."""
        self._answer, self.asked = answer, None
        self._answered.set()

    async def ask(self, asked: ServerElicitation) -> Answer:
        """The answer to a question of the server; one at a time."""
        async with self._turn:
            known = self.answers(asked) if self.answers is not None else None
            if known is not None or self.is_over:
                return known or {"action": "cancel"}
            self.asked, self._answer, self._answered = asked, None, anyio.Event()
            self._news.set()
            await self._answered.wait()
            return self._answer or {"action": "cancel"}


class InFlightCalls:
    """The calls of one connection to one server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._open: list[InFlightCall] = []
        self._held: dict[str, InFlightCall] = {}
        """By the id under which a question of theirs was stored."""

    def begin(self, tasks: TaskGroup, talk: InFlightCall, send: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> None:
            self._open.append(talk)
            try:
                await talk.run(send)
            finally:
                self._open.remove(talk)

        tasks.start_soon(run)

    def hold(self, name: str, talk: InFlightCall) -> bool:
        """Keep a call that waits for an answer; False when there are too many of them."""
        if len(self._held) >= MAX_HELD:
            return False
        self._held[name] = talk
        return True

    def take(self, name: str) -> InFlightCall | None:
        """The call whose question was stored under that id, if this process still has it."""
        return self._held.pop(name, None)

    def drop(self, execution_id: str) -> None:
        """End the calls of an execution that wait for an answer which will not come."""
        for name in [name for name, talk in self._held.items() if talk.execution_id == execution_id]:
            self._held.pop(name).scope.cancel()

    async def elicited(self, params: "ElicitRequestParams") -> "ElicitResult | ErrorData":
        """What the server hears when it asks in the middle of a call."""
        from mcp.types import INVALID_REQUEST, ElicitResult, ErrorData

        # Nothing on the wire says which call a question belongs to; a wrong guess would show it to a stranger.
        if len({talk.execution_id for talk in self._open}) != 1:
            logger.warning("server %r asks something that belongs to no call of one execution; refused", self._server)
            return ErrorData(code=INVALID_REQUEST, message="the question belongs to no single call in progress")
        try:
            asked = read_question(params)
        except BadQuestion as error:
            logger.warning("server %r asks what cannot be shown: %s", self._server, error)
            return ErrorData(code=INVALID_REQUEST, message=str(error))
        return ElicitResult.model_validate(await self._open[-1].ask(asked))
