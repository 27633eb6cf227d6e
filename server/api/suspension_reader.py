"""Finds one suspension for a caller, and shows it and its execution."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

import anyio.lowlevel

from planwarden.agent.common.canonical import measure_encoded
from planwarden.agent.common.errors import UnknownSuspension
from planwarden.agent.core.fold import apply
from planwarden.agent.core.state import ExecutionState, SuspensionState, new_execution
from planwarden.agent.core.suspension_kinds import Addressee
from planwarden.agent.ports.store import Lookups
from planwarden.agent.ports.toolbox import Definitions
from planwarden.server.api.limits import AttemptLimiter
from planwarden.server.views.encoding import to_short_json
from planwarden.server.views.execution import Execution, ask_for_person, build_execution_view
from planwarden.server.views.suspension import Program, Suspension, SuspensionPage, build_suspension_view, name_program

if TYPE_CHECKING:
    from planwarden.agent.runtime.engine import Engine


class SuspensionReader:
    """Shows the suspensions of one engine; one of another principal looks as if it did not exist."""

    def __init__(
        self,
        engine: "Engine",
        attempts: AttemptLimiter,
        *,
        build_view: Callable[[ExecutionState], Execution],
        find_inbox: Callable[[ExecutionState], str | None],
        program: Program,
    ) -> None:
        """`find_inbox` returns the address of the inbox, which it may open for a person; `program` begins the command
        with which a person decides.
        """
        self._engine = engine
        self._attempts = attempts
        self._build_view = build_view
        self._find_inbox = find_inbox
        self._program = program

    async def view(self, thread_id: str, suspension_id: str, *, principal: str | None) -> tuple[Suspension, bool]:
        """Returns the suspension as it is now, and whether it is still open.

        Raises:
            UnknownSuspension: the principal's thread has no such suspension.
        """
        execution, found = await self._find(thread_id, suspension_id, principal)
        inbox = self._find_inbox(execution)
        view = build_suspension_view(execution, found, self._engine.tools, inbox=inbox, program=self._program)
        return view, found.is_open

    async def view_when_asked(self, thread_id: str, suspension_id: str, *, principal: str) -> Execution | None:
        """Returns the execution as it was when it first waited with this question; None if that is not open any more.

        Raises:
            UnknownSuspension: the principal's thread has no such suspension.
        """
        execution, found = await self._find(thread_id, suspension_id, principal)
        if not found.is_open:
            return None
        state = new_execution(execution.execution_id, execution.thread_id, execution.principal)
        for entry in await self._engine.store.read(execution.execution_id, 0):
            state = apply(state, entry.event, entry.at)
            if suspension_id in state.suspensions and state.status != "running":
                break
        return build_execution_view(state, self._engine.tools, program=self._program)

    async def view_awaiting(
        self,
        thread_id: str,
        suspension_id: str,
        *,
        principal: str,
        attempt: Literal["approval", "answer"] | None = None,
    ) -> Execution:
        """Returns the execution with the sentence that asks for a person, unless the suspension is decided by now.

        `attempt` counts against the limit: an `approval` without authority, or an `answer` that decided nothing.

        Raises:
            UnknownSuspension: the principal's thread has no such suspension.
            RateLimited: the caller tried too often.
        """
        execution, found = await self._find(thread_id, suspension_id, principal)
        if not found.is_open:
            return self._build_view(execution)
        if attempt is not None:
            self._attempts.count(suspension_id, attempt)
        return ask_for_person(self._build_view(execution), suspension_id)

    async def find_thread(self, suspension_id: str, principal: str) -> str:
        """Returns the thread of a suspension of the principal.

        Raises:
            UnknownSuspension: the principal has no such suspension.
        """
        row = await self._engine.store.find_suspension(suspension_id)
        if row is None or row.principal != principal:
            raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r}")
        return row.thread_id

    async def _find(
        self, thread_id: str, suspension_id: str, principal: str | None
    ) -> tuple[ExecutionState, SuspensionState]:
        held = await self._engine.find_by_suspension(thread_id, suspension_id, principal=principal)
        execution = await self._engine.find(held.execution_id)
        found = execution.suspensions.get(suspension_id)
        if found is None or found.question.addressee == "clock":
            raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r} in thread {thread_id[:64]!r}")
        return execution, found


async def list_open_suspensions(
    store: Lookups,
    find: Callable[[str], Awaitable[ExecutionState]],
    tools: Definitions | None,
    *,
    thread_id: str | None = None,
    addressee: Addressee | None = None,
    limit: int,
    cursor: str | None,
    principal: str | None,
    find_inbox: Callable[[ExecutionState], str | None] = lambda _: None,
    program: Program = name_program,
    is_described: bool = True,
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> SuspensionPage:
    """Returns open suspensions, oldest first, those of everybody without a `principal`. `find` reads an execution.

    `tools`, `program`, `is_described` and `max_rows` are as for `build_suspension_view`. The page ends before the
    suspension with which it would have more than `max_bytes` of JSON, unless that is its first.

    Raises:
        InvalidArguments: the cursor cannot be used.
    """
    page = await store.suspensions(
        principal=principal, thread_id=thread_id, addressee=addressee, limit=limit, cursor=cursor
    )
    found: list[Suspension] = []
    size = 0
    for place, row in enumerate(page.rows):
        if max_bytes is not None:
            # What each one costs is bounded; other requests are answered in between. Commands have no loop.
            await anyio.lowlevel.checkpoint()
        execution = await find(row.execution_id)
        suspension = execution.suspensions.get(row.suspension_id)
        if suspension is not None and suspension.is_open:
            view = build_suspension_view(
                execution,
                suspension,
                tools,
                inbox=find_inbox(execution),
                program=program,
                is_described=is_described,
                max_rows=max_rows,
            )
            size += 0 if max_bytes is None else measure_encoded(to_short_json(view))
            if found and max_bytes is not None and size > max_bytes:
                # Asked for so many, the store says where the next page begins.
                page = await store.suspensions(
                    principal=principal, thread_id=thread_id, addressee=addressee, limit=place, cursor=cursor
                )
                break
            found.append(view)
    return SuspensionPage(suspensions=tuple(found), total=page.total, next_cursor=page.next_cursor)
