"""Finds a principal's threads, and the thread in which the next execution runs."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from planwarden.agent.common.errors import ThreadBusy, UnknownThread
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import FINISHED, ExecutionState
from planwarden.agent.core.execution.thread_effects import list_effects, list_thread_effects
from planwarden.agent.core.prompt.prompts import summarize
from planwarden.agent.ports.store import Header
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.new_execution import PreparedThread, StartOptions
from planwarden.server.settings.options import combine_options

_CONTEXT_EXECUTIONS = 3
"""Executions of a thread that a new plan is told about."""
_CONTEXT_EFFECTS = 20
"""Effects of a thread that it is told about."""


class Threads:
    """The threads of one engine; a thread of another principal looks as if it did not exist."""

    def __init__(self, engine: Engine, options: ev.Options) -> None:
        self._engine = engine
        self._options = options

    async def read_headers(self, thread_id: str, principal: str) -> tuple[Header, ...]:
        """Return the headers of the thread's executions, oldest first.

        Raises:
            UnknownThread: the principal has no such thread.
        """
        headers = await self._engine.store.thread(thread_id)
        if not headers or headers[0].principal != principal:
            raise UnknownThread(f"there is no thread {thread_id[:64]!r}; leave threadId out to start one")
        return headers

    async def load_newest(self, thread_id: str, principal: str) -> ExecutionState:
        """Return the thread's newest execution. Raises `UnknownThread`."""
        headers = await self.read_headers(thread_id, principal)
        return await self._engine.find(headers[-1].execution_id)

    async def prepare(
        self, start: StartOptions, call: Mapping[str, object], *, makes_plan: bool = False
    ) -> PreparedThread:
        """Return the thread of a new execution; with `makes_plan` its context, for the model that makes the plan.

        A goal has a final text by default, which the thread inherits only if the caller asked for it.

        Raises:
            UnknownThread: the principal has no such thread.
            ThreadBusy: the thread has an unfinished execution.
        """
        headers, newest = (), None
        if start.thread_id is not None:
            headers = await self.read_headers(start.thread_id, start.requester.principal)
            newest = await self._engine.find(headers[-1].execution_id)
            if newest.status not in FINISHED:
                raise _build_busy_error(start.thread_id, newest)
        options = combine_options(self._options, None if newest is None else newest.options, call)
        if makes_plan and "synthesize" not in (start.options or {}):
            options = replace(options, explicit=tuple(name for name in options.explicit if name != "synthesize"))
        if newest is None:
            return PreparedThread(self._engine.ids.new(), options)
        effects = list_thread_effects(newest)
        context = await self._summarize(headers, effects) if makes_plan else None
        return PreparedThread(newest.thread_id, options, context, effects)

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
            "suspensionId": suspension.question.suspension_id,
            "kind": suspension.question.public_kind,
            "message": suspension.question.message[:200],
        }
        for suspension in execution.open_suspensions
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
