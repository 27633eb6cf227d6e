"""Finds a principal's threads, and the thread in which the next execution runs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from planwarden.agent.common.errors import ThreadBusy, UnknownThread
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.prompts import summarize
from planwarden.agent.core.state import FINISHED, ExecutionState
from planwarden.agent.core.thread_effects import list_effects, list_thread_effects
from planwarden.agent.ports.store import Header
from planwarden.agent.runtime.engine import Engine
from planwarden.server.settings.options import combine_options

_CONTEXT_EXECUTIONS = 3
"""Executions of a thread that a new plan is told about."""
_CONTEXT_EFFECTS = 20
"""Effects of a thread that it is told about."""


class PreparedThread(NamedTuple):
    """What a new execution needs to know of its thread."""

    thread_id: str
    options: ev.Options
    context: str | None = None
    """What the thread did before, for a new plan."""
    effects: tuple[ev.ThreadEffect, ...] = ()
    """The newest effects of its executions."""


class Threads:
    """The threads of one engine; a thread of another principal looks as if it did not exist."""

    def __init__(self, engine: Engine, options: ev.Options) -> None:
        self._engine = engine
        self._options = options

    async def read_headers(self, thread_id: str, principal: str) -> tuple[Header, ...]:
        """Returns the headers of the thread's executions, oldest first.

        Raises:
            UnknownThread: the principal has no such thread.
        """
        headers = await self._engine.store.thread(thread_id)
        if not headers or headers[0].principal != principal:
            raise UnknownThread(f"there is no thread {thread_id[:64]!r}; leave threadId out to start one")
        return headers

    async def load_newest(self, thread_id: str, principal: str) -> ExecutionState:
        """Returns the thread's newest execution. Raises `UnknownThread`."""
        headers = await self.read_headers(thread_id, principal)
        execution = await self._engine.find(headers[-1].execution_id)
        return execution

    async def prepare(
        self,
        thread_id: str | None,
        principal: str,
        call: Mapping[str, object],
        *,
        implied: str | None = None,
        given: Mapping[str, JsonValue] | None = None,
    ) -> PreparedThread:
        """Returns what a new execution needs to know of its thread.

        `implied` names an option in `call` that is a default; the thread inherits it only if it is also in `given`.

        Raises:
            UnknownThread: the principal has no such thread.
            ThreadBusy: the thread has an unfinished execution.
        """
        if thread_id is None:
            combined = combine_options(self._options, None, call)
            return PreparedThread(self._engine.ids.new(), _drop_implied(combined, implied, given))
        headers = await self.read_headers(thread_id, principal)
        newest = await self._engine.find(headers[-1].execution_id)
        if newest.status not in FINISHED:
            raise _build_busy_error(thread_id, newest)
        combined = combine_options(self._options, newest.options, call)
        effects = list_thread_effects(newest)
        context = await self._summarize(headers, effects)
        return PreparedThread(thread_id, _drop_implied(combined, implied, given), context, effects)

    async def _summarize(self, headers: Sequence[Header], effects: Sequence[ev.ThreadEffect]) -> str:
        parts: list[str] = []
        for header in headers[-_CONTEXT_EXECUTIONS:]:
            execution = await self._engine.find(header.execution_id)
            outcome = execution.synthesis or summarize(execution)
            parts.append(f"goal: {(execution.goal or 'a given plan')[:300]}\n{execution.status}\n{outcome[:1500]}")
        if effects:
            parts.append("completed, do not repeat:\n" + list_effects(effects, _CONTEXT_EFFECTS))
        return "\n\n".join(parts)


def _build_busy_error(thread_id: str, execution: ExecutionState) -> ThreadBusy:
    pending: list[JsonValue] = [
        {
            "suspensionId": found.question.suspension_id,
            "kind": found.question.public_kind,
            "message": found.question.message[:200],
        }
        for found in execution.open_suspensions
    ]
    what = "waits for an answer" if pending else f"is {execution.status}"
    advice = (
        "execute_plan without a plan runs it"
        if execution.status == "planned"
        else "answer it, wait for it, or start without threadId"
    )
    return ThreadBusy(
        f"thread {thread_id!r} has an unfinished execution that {what}; {advice}, or cancel_execution",
        details={"executionId": execution.execution_id, "status": execution.status, "pending": pending},
    )


def _drop_implied(options: ev.Options, implied: str | None, given: Mapping[str, JsonValue] | None) -> ev.Options:
    if implied is None or (given is not None and implied in given):
        return options
    return replace(options, given=tuple(name for name in options.given if name != implied))
