"""The verbs, for every edge alike: the Python API, MCP and the command line differ only in the authority they pass.

Everything is keyed by principal; what belongs to another principal looks as if it did not exist.
"""

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import (
    InvalidArguments,
    InvalidPlan,
    LimitExceeded,
    RateLimited,
    ThreadBusy,
    UnknownArtifact,
    UnknownSuspension,
    UnknownThread,
)
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.pins import list_tool_names
from planwarden.agent.core.plan import parse_plan, read_tool_names
from planwarden.agent.core.prompts import summarize
from planwarden.agent.core.state import FINISHED, ExecutionState, SuspensionState
from planwarden.agent.ports.store import Header
from planwarden.server.api.grants import GrantService
from planwarden.server.auth.proof import authority_for
from planwarden.server.settings.configuration import RETENTION_DAYS
from planwarden.server.settings.options import combine, parse_options
from planwarden.server.views.execution import Execution, build_execution_view
from planwarden.server.views.observations import observations
from planwarden.server.views.suspension import Suspension, SuspensionPage, build_suspension_view
from planwarden.server.views.tools import ToolPage, ToolSchemas, build_tool_line, build_tool_view
from planwarden.tools.delegate.chain import MAX_DEPTH

# Edges know the verbs before there is an engine, and answer their first request without importing one.
if TYPE_CHECKING:
    from planwarden.agent.runtime.engine import Engine
    from planwarden.tools.downstream.servers import DownstreamServers

MAX_GOAL_CHARS = 20_000
MAX_REASON_CHARS = 2_000
MAX_PAGE = 100
MAX_WAIT_S = 300.0
ATTEMPTS, ATTEMPTS_S = 5, 600.0
"""Approvals without authority that one suspension takes before the caller is told to stop."""


class InboxOpener(Protocol):
    """An inbox that is opened when somebody is needed."""

    def address(self) -> str | None:
        """Where the inbox is, opened now if it was not; None when it cannot be."""
        ...

    def call_person(self, suspension_id: str) -> None:
        """Nobody could be asked through the client: show the question to the person if there is a way."""
        ...


class Service:
    """One engine's verbs. Each gives a view; each raises `PlanwardenError` with a code of the contract."""

    def __init__(
        self,
        engine: "Engine",
        options: ev.Options,
        *,
        max_steps: int,
        downstream: "DownstreamServers | None" = None,
        caller_thinks: bool = False,
        retention_days: int = RETENTION_DAYS,
    ) -> None:
        # As the engine: needed now, and not before.
        from planwarden.server.api.audit import AuditReader

        self.engine = engine
        self.downstream = downstream
        self.caller_thinks = caller_thinks
        """True when prompts become questions to the caller."""
        self.retention_days = retention_days
        """How long finished executions are kept, at least."""
        if downstream is not None:
            engine.listen(downstream.handle_commit)
            downstream.watch_agents(engine)
        self._options = options
        self._max_steps = max_steps
        self._attempts: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()
        self.grants = GrantService(engine)
        self.audit = AuditReader(engine.store)
        self.inbox: str | None = None
        """Address of the inbox page while one runs."""
        self.inbox_opener: InboxOpener | None = None
        """Opens an inbox when a question to a person is first shown."""

    async def run_goal(
        self,
        goal: str,
        *,
        thread_id: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        principal: str,
        plan_only: bool = False,
        client_id: str | None = None,
        chain: Sequence[str] = (),
    ) -> Execution:
        """Plan for the goal and run the plan; with `plan_only` stop at `planned`."""
        _check_text(goal, "goal", MAX_GOAL_CHARS)
        await self._check_chain(chain)
        await self.catalogue_known()
        call = {"synthesize": not plan_only, **parse_options(options)}
        thread, combined, context = await self._thread_for(
            thread_id, principal, call, implied="synthesize", given=options
        )
        execution = await self.engine.create(
            thread_id=thread,
            principal=principal,
            goal=goal,
            options=combined,
            plan_only=plan_only,
            context=context,
            client_id=client_id,
            chain=tuple(chain),
        )
        return await self._waited(execution, wait_seconds)

    async def execute_plan(
        self,
        plan: JsonValue = None,
        *,
        goal: str | None = None,
        thread_id: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        principal: str,
        client_id: str | None = None,
        chain: Sequence[str] = (),
    ) -> Execution:
        """Run the given plan; or the planned one of the thread, or its incomplete one with a larger budget."""
        call = parse_options(options)
        if plan is None:
            return await self._run_planned(thread_id, call, wait_seconds, principal, client_id)
        if goal is not None:
            _check_text(goal, "goal", MAX_GOAL_CHARS)
        await self._check_chain(chain)
        await self.tools_known(read_tool_names(plan))
        self._check_servers(read_tool_names(plan))
        parsed, _ = parse_plan(plan, author="caller", tools=self.engine.tool_facts(), max_steps=self._max_steps)
        thread, combined, _ = await self._thread_for(thread_id, principal, call)
        execution = await self.engine.create(
            thread_id=thread,
            principal=principal,
            goal=goal,
            plan=parsed,
            options=combined,
            client_id=client_id,
            chain=tuple(chain),
        )
        return await self._waited(execution, wait_seconds)

    async def get_execution(
        self, thread_id: str, *, observations_after: int | None = None, principal: str
    ) -> Execution:
        """The thread's newest execution; with `observations_after` also what happened after that sequence number."""
        execution = await self._newest(thread_id, principal)
        if observations_after is None:
            return self.view(execution)
        if observations_after < 0:
            raise InvalidArguments("observationsAfter must be 0 or more")
        recorded = await self.engine.store.read(execution.execution_id, observations_after)
        shown = [entry for entry in recorded if entry.sequence <= execution.version]
        return build_execution_view(
            execution, self.engine.tools, list(observations(shown, execution)), inbox=self.address(execution)
        )

    async def _check_chain(self, chain: Sequence[str]) -> None:
        """Refuse what was delegated too often, or comes back to whoever delegated it."""
        if len(chain) > MAX_DEPTH:
            raise LimitExceeded(f"this goal was delegated {len(chain)} times, the limit is {MAX_DEPTH}")
        for execution_id in chain:
            if await self.engine.store.header(execution_id) is not None:
                raise LimitExceeded(f"this goal comes back to where it was delegated, execution {execution_id!r}")

    async def artifact(self, thread_id: str, artifact_id: str, *, principal: str | None) -> Artifact:
        """An artifact of the thread, whole. `principal` None reads everybody's, for the operator's terminal.

        Raises:
            UnknownArtifact: there is none, or the thread is not the principal's.
        """
        headers = await self.engine.store.thread(thread_id)
        found: Artifact | None = None
        if headers and principal in (None, headers[0].principal):
            found = await self.engine.store.artifact(thread_id, artifact_id)
        if found is None:
            raise UnknownArtifact(f"there is no artifact {artifact_id[:64]!r} in thread {thread_id[:64]!r}")
        return found

    async def list_suspensions(
        self,
        *,
        thread_id: str | None = None,
        addressee: ev.Addressee | None = None,
        limit: int = 20,
        cursor: str | None = None,
        principal: str | None,
    ) -> SuspensionPage:
        """Open questions, oldest first. `principal` None lists everybody's, for the operator's terminal."""
        _check_limit(limit)
        if thread_id is not None and principal is not None:
            await self._headers(thread_id, principal)
        page = await self.engine.store.suspensions(
            principal=principal, thread_id=thread_id, addressee=addressee, limit=limit, cursor=cursor
        )
        found: list[Suspension] = []
        for row in page.rows:
            execution = await self.engine.find(row.execution_id)
            suspension = execution.suspensions.get(row.suspension_id)
            if suspension is not None and suspension.is_open:
                inbox = self.address(execution)
                found.append(build_suspension_view(execution, suspension, self.engine.tools, inbox=inbox))
        return SuspensionPage(suspensions=tuple(found), total=page.total, next_cursor=page.next_cursor)

    async def answer(
        self,
        thread_id: str,
        suspension_id: str,
        decision: Decision,
        authority: Authority,
        *,
        wait_seconds: float | None = None,
        principal: str | None,
        caller_only: bool = False,
    ) -> Execution:
        """Answer a question; when the authority does not suffice, nothing runs and the view says who is awaited.

        `principal` is the owner whose executions the door may see; None for the operator's doors, which see all.
        """
        execution = await self.engine.find_by_suspension(thread_id, suspension_id, principal=principal)
        asked = execution.suspensions.get(suspension_id)
        authority = authority_for(authority, execution)
        if caller_only and asked is not None and asked.question.addressee != "caller":
            raise InvalidArguments(
                f"suspension {suspension_id!r} is addressed to a person; submit_answer answers only questions to the "
                "calling model; use resume_execution, which asks the person"
            )
        if authority.assurance == "claimed" and decision.approved is not False and _waits_for_a_person(asked):
            self._count_attempt(suspension_id)
        if execution.plan is not None:
            await self.tools_known(list_tool_names(execution.plan))
        execution, accepted = await self.engine.answer(execution, suspension_id, decision, authority)
        if accepted:
            return await self._waited(execution, wait_seconds)
        if authority.assurance == "claimed":
            await self._note_claim(execution, suspension_id, authority)
        return self._awaiting(execution, suspension_id)

    async def _note_claim(self, execution: ExecutionState, suspension_id: str, authority: Authority) -> None:
        """The calling model tried to approve for a person: that stands in the audit too."""
        facts: dict[str, JsonValue] = {
            "assurance": authority.assurance,
            "channel": authority.channel,
            "principal": authority.principal,
        }
        entry = AuditEntry(
            kind="refused", facts=facts, execution_id=execution.execution_id, suspension_id=suspension_id
        )
        await self.engine.store.audit((entry,))

    async def question(self, thread_id: str, suspension_id: str, *, principal: str | None) -> tuple[Suspension, bool]:
        """The question as it stands now, and whether it is still open.

        Raises:
            UnknownSuspension: there is none in this thread of the principal's.
        """
        execution, found = await self._question(thread_id, suspension_id, principal)
        view = build_suspension_view(execution, found, self.engine.tools, inbox=self.address(execution))
        return view, found.is_open

    async def awaiting(
        self,
        thread_id: str,
        suspension_id: str,
        *,
        principal: str,
        attempt: Literal["approval", "answer"] | None = None,
    ) -> Execution:
        """The execution that waits for a person, with the sentence to pass on; as it is when nobody is awaited any more.

        With `attempt` it counts: an `approval` without authority, as in `answer`, or an `answer` that decided nothing.
        """
        execution, found = await self._question(thread_id, suspension_id, principal)
        if not found.is_open:
            return self.view(execution)
        if attempt is not None:
            self._count_attempt(suspension_id, attempt)
        return self._awaiting(execution, suspension_id)

    async def cancel_execution(self, thread_id: str, *, reason: str | None = None, principal: str) -> Execution:
        """Stop the thread's execution; a finished one is given back as it is."""
        if reason is not None:
            _check_text(reason, "reason", MAX_REASON_CHARS)
        execution = await self._newest(thread_id, principal)
        execution = await self.engine.cancel(execution, reason)
        return await self._waited(execution, 5.0)

    def search_tools(self, query: str | None = None, *, limit: int = 20, cursor: str | None = None) -> ToolPage:
        """Lines of the catalogue, best matches first."""
        _check_limit(limit)
        if query is not None:
            _check_text(query, "query", 1_000, empty=True)
        found = self.engine.tools.search(query or "", len(self.engine.tools.definitions()))
        start = _offset(cursor, len(found))
        page = tuple(build_tool_line(definition) for definition in found[start : start + limit])
        following = start + limit
        return ToolPage(tools=page, total=len(found), next_cursor=str(following) if following < len(found) else None)

    def get_tool_schemas(self, names: Sequence[str]) -> ToolSchemas:
        """Full definitions of the named tools, and which names there are not."""
        if not names:
            raise InvalidArguments("'names' is empty; search_tools lists names")
        if len(names) > MAX_PAGE:
            raise LimitExceeded(f"{len(names)} names were asked for, the limit is {MAX_PAGE}")
        wanted = list(dict.fromkeys(names))
        found = {name: definition for name in wanted if (definition := self.engine.tools.get(name)) is not None}
        return ToolSchemas(
            tools=tuple(map(build_tool_view, found.values())),
            unknown=tuple(name[:128] for name in wanted if name not in found),
        )

    async def tools_known(self, names: Iterable[str]) -> None:
        """Wait, bounded, for the listing of a downstream server that one of the unknown names would come from."""
        if self.downstream is not None:
            await self.downstream.wait_until_listed(names)

    def _check_servers(self, names: Iterable[str]) -> None:
        """Say which server keeps a plan from running; to call its tools unknown would be half of the truth."""
        if self.downstream is None:
            return
        found = {name: why for name in sorted(names) if (why := self.downstream.unavailable_reason(name)) is not None}
        if found:
            text = "; ".join(f"{name[:128]!r} is not available: {why}" for name, why in list(found.items())[:10])
            missing: list[JsonValue] = [name[:128] for name in found]
            raise InvalidPlan(f"the plan needs what is not there now: {text}", details={"unknownTools": missing})

    async def catalogue_known(self) -> None:
        """Wait, bounded, for the first listing of every downstream server; at once when all were listed before."""
        if self.downstream is not None:
            await self.downstream.wait_until_all_listed()

    def view(self, execution: ExecutionState) -> Execution:
        return build_execution_view(execution, self.engine.tools, inbox=self.address(execution))

    def address(self, execution: ExecutionState) -> str | None:
        """Where the inbox is; when the execution waits for a person and there is a door, it is opened now."""
        if (
            self.inbox is None
            and self.inbox_opener is not None
            and any(map(_waits_for_a_person, execution.open_suspensions))
        ):
            self.inbox = self.inbox_opener.address()
        return self.inbox

    def call_person(self, suspension_id: str) -> None:
        """Nobody could be asked through the client."""
        if self.inbox_opener is not None:
            self.inbox_opener.call_person(suspension_id)

    async def newest(self, thread_id: str, principal: str) -> ExecutionState:
        """The folded state of the thread's newest execution."""
        return await self._newest(thread_id, principal)

    async def _question(
        self, thread_id: str, suspension_id: str, principal: str | None
    ) -> tuple[ExecutionState, SuspensionState]:
        held = await self.engine.find_by_suspension(thread_id, suspension_id, principal=principal)
        execution = await self.engine.find(held.execution_id)
        found = execution.suspensions.get(suspension_id)
        if found is None or found.question.addressee == "clock":
            raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r} in thread {thread_id[:64]!r}")
        return execution, found

    def _awaiting(self, execution: ExecutionState, suspension_id: str) -> Execution:
        view = self.view(execution)
        found = next((asked for asked in view.suspensions if asked.suspension_id == suspension_id), None)
        where = [f"to run `planwarden approve {suspension_id}`"]
        if found is not None and found.how_to_answer.inbox_url is not None:
            where.insert(0, f"to open {found.how_to_answer.inbox_url}")
        until = (
            "" if found is None or found.expires_at is None else f" It ends at {_instant(found)}: {found.on_timeout}."
        )
        return dataclasses.replace(
            view,
            awaiting="human",
            next_action=f"{_who(found)}; do not retry. Ask them {' or '.join(where)}.{until} Then call get_execution.",
        )

    async def _run_planned(
        self,
        thread_id: str | None,
        call: Mapping[str, object],
        wait_seconds: float | None,
        principal: str,
        client_id: str | None,
    ) -> Execution:
        if thread_id is None:
            raise InvalidArguments("send a 'plan', or the 'threadId' of a thread with a planned execution")
        execution = await self._newest(thread_id, principal)
        if execution.status not in ("planned", "incomplete"):
            raise InvalidArguments(
                f"thread {thread_id!r} has no planned execution; its newest one is {execution.status}"
            )
        # Deciding is the engine's, which is there when this is called.
        from planwarden.agent.core.decide import find_exhausted_budget

        options = combine(self._options, execution.options, call)
        spent = find_exhausted_budget(replace(execution, options=options))
        if spent is not None:
            raise InvalidArguments(f"the budget of {spent} is used up; send a larger one in options.budgets")
        if execution.plan is not None:
            await self.tools_known(list_tool_names(execution.plan))
        started = await self.engine.start(execution, options, client_id=client_id)
        return await self._waited(started, wait_seconds)

    async def _thread_for(
        self,
        thread_id: str | None,
        principal: str,
        call: Mapping[str, object],
        *,
        implied: str | None = None,
        given: Mapping[str, JsonValue] | None = None,
    ) -> tuple[str, ev.Options, str | None]:
        """Thread id, combined options, and what the thread did before. `implied` is a default, not an explicit option."""
        if thread_id is None:
            combined = combine(self._options, None, call)
            return self.engine.ids.new(), _without(combined, implied, given), None
        headers = await self._headers(thread_id, principal)
        newest = await self.engine.find(headers[-1].execution_id)
        if newest.status not in FINISHED:
            raise _busy(thread_id, newest)
        combined = combine(self._options, newest.options, call)
        return thread_id, _without(combined, implied, given), await self._context(headers)

    async def _context(self, headers: Sequence[Header]) -> str:
        parts: list[str] = []
        for header in headers[-3:]:
            execution = await self.engine.find(header.execution_id)
            outcome = execution.synthesis or summarize(execution)
            parts.append(f"goal: {(execution.goal or 'a given plan')[:300]}\n{execution.status}\n{outcome[:1500]}")
        return "\n\n".join(parts)

    async def _newest(self, thread_id: str, principal: str) -> ExecutionState:
        headers = await self._headers(thread_id, principal)
        execution = await self.engine.find(headers[-1].execution_id)
        return execution

    async def _headers(self, thread_id: str, principal: str) -> tuple[Header, ...]:
        headers = await self.engine.store.thread(thread_id)
        if not headers or headers[0].principal != principal:
            raise UnknownThread(f"there is no thread {thread_id[:64]!r}; leave threadId out to start one")
        return headers

    async def _waited(self, execution: ExecutionState, wait_seconds: float | None) -> Execution:
        seconds = execution.options.wait_seconds if wait_seconds is None else wait_seconds
        if not 0 <= seconds <= MAX_WAIT_S:
            raise InvalidArguments(f"waitSeconds must be between 0 and {MAX_WAIT_S:.0f}")
        return self.view(await self.engine.wait(execution, seconds) if seconds else execution)

    def _count_attempt(self, suspension_id: str, kind: str = "approval") -> None:
        """`kind` keeps proposals and answers that decide nothing apart: asking a person takes one of each."""
        now = self.engine.store.clock.now()
        times = self._attempts.setdefault((suspension_id, kind), deque(maxlen=ATTEMPTS))
        if len(times) == ATTEMPTS and now - times[0] < ATTEMPTS_S:
            raise RateLimited(
                f"suspension {suspension_id!r} was approved {ATTEMPTS} times without a person; a person must decide: "
                f"`planwarden approve {suspension_id}`",
                details={"retryAfterSeconds": round(ATTEMPTS_S - (now - times[0]))},
            )
        times.append(now)
        if len(self._attempts) > 10_000:
            self._attempts.popitem(last=False)


def _who(asked: Suspension | None) -> str:
    """Who has to decide, as the beginning of a sentence."""
    if asked is not None and asked.quorum > 1:
        return f"{asked.quorum} different people must decide ({len(asked.endorsements)} did)"
    if asked is not None and asked.needs == "second":
        return "A person other than the owner must decide"
    if asked is not None and asked.needs == "signed":
        return "A person must decide with a signature, or a person other than the owner"
    return "A person must decide"


def _waits_for_a_person(suspension: SuspensionState | None) -> bool:
    return suspension is not None and suspension.is_open and suspension.question.addressee == "human"


def _instant(question: Suspension) -> str:
    assert question.expires_at is not None
    return question.expires_at.isoformat(timespec="seconds").replace("+00:00", "Z")


def _busy(thread_id: str, execution: ExecutionState) -> ThreadBusy:
    pending: list[JsonValue] = [
        {
            "suspensionId": found.question.suspension_id,
            "kind": found.question.kind,
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


def _without(options: ev.Options, implied: str | None, given: Mapping[str, JsonValue] | None) -> ev.Options:
    """An implied default is not inherited by the thread's next execution."""
    if implied is None or (given is not None and implied in given):
        return options
    return replace(options, given=tuple(name for name in options.given if name != implied))


def _check_text(text: str, name: str, limit: int, *, empty: bool = False) -> None:
    if not empty and not text.strip():
        raise InvalidArguments(f"'{name}' is empty")
    if len(text) > limit:
        raise LimitExceeded(f"'{name}' has {len(text)} characters, the limit is {limit}")


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidArguments(f"'limit' must be between 1 and {MAX_PAGE}")


def _offset(cursor: str | None, total: int) -> int:
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or int(cursor[:9]) > total:
        raise InvalidArguments(f"cursor {cursor[:64]!r} is not one that this server gave out")
    return int(cursor[:9])
