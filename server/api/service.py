"""The one way into the engine. The Python API, MCP, inbox and command line differ only in the authority that they pass.

A principal sees only its own threads; those of another principal look as if they did not exist.
"""

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
    UnknownArtifact,
    UnknownSuspension,
)
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.bindings import EarlierNeeded, EarlierResult, Reference
from planwarden.agent.core.plan import Plan, list_earlier_results, parse_plan, read_tool_names
from planwarden.agent.core.state import ExecutionState, SuspensionState, new_execution
from planwarden.agent.ports.store import StartRequest
from planwarden.server.api.limits import (
    MAX_GOAL_CHARS,
    MAX_PAGE,
    MAX_QUERY_CHARS,
    MAX_REASON_CHARS,
    AttemptLimiter,
    check_limit,
    check_text,
    check_wait,
    parse_offset,
)
from planwarden.server.auth.proof import assess_authority
from planwarden.server.settings.configuration import RETENTION_DAYS
from planwarden.server.settings.options import combine_options, parse_options
from planwarden.server.views.execution import Execution, ask_for_person, build_execution_view
from planwarden.server.views.observations import build_observations
from planwarden.server.views.suspension import Suspension, SuspensionPage, build_suspension_view
from planwarden.server.views.tools import ToolPage, ToolSchemas, build_tool_line, build_tool_view
from planwarden.tools.delegate.chain import MAX_DEPTH

# A server answers its first requests before there is an engine, and without importing one.
if TYPE_CHECKING:
    from planwarden.agent.runtime.engine import Engine
    from planwarden.tools.downstream.servers import DownstreamServers


class InboxOpener(Protocol):
    """Opens the inbox when a person must decide."""

    def address(self) -> str | None:
        """Returns the address of the inbox, which it opens if necessary; None when the inbox cannot be opened."""
        ...

    def call_person(self, suspension_id: str) -> None:
        """Shows the question to the person without the client, if that is possible."""
        ...


class Service:
    """What a caller can ask of one engine. Methods return views and raise `PlanwardenError` with a documented code."""

    def __init__(
        self,
        engine: "Engine",
        options: ev.Options,
        *,
        max_steps: int,
        downstream: "DownstreamServers | None" = None,
        is_caller_model: bool = False,
        retention_days: int = RETENTION_DAYS,
    ) -> None:
        # Imported here because a server answers its first requests before it constructs a service.
        from planwarden.server.api.audit import AuditReader
        from planwarden.server.api.grants import GrantService
        from planwarden.server.api.starts import Starts
        from planwarden.server.api.threads import Threads

        self.engine = engine
        self.downstream = downstream
        self.is_caller_model = is_caller_model
        """The calling model answers the prompts, as questions."""
        self.retention_days = retention_days
        """Days for which finished executions are kept at least."""
        if downstream is not None:
            engine.listen(downstream.handle_commit)
            downstream.watch_agents(engine)
        self._options = options
        self._max_steps = max_steps
        self._attempts = AttemptLimiter(engine.store.clock)
        self._threads = Threads(engine, options)
        self._starts = Starts(engine)
        self.grants = GrantService(engine)
        self.audit = AuditReader(engine.store)
        self.inbox_url: str | None = None
        """Address of the inbox while one runs."""
        self.inbox_opener: InboxOpener | None = None
        """Opens an inbox when an execution first waits for a person."""

    async def run_goal(
        self,
        goal: str,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        principal: str,
        plan_only: bool = False,
        client_id: str | None = None,
        host: str | None = None,
        chain: Sequence[str] = (),
    ) -> Execution:
        """Plans for the goal and runs the plan; with `plan_only` stops at `planned`. A known `key` starts nothing."""
        check_text(goal, "goal", MAX_GOAL_CHARS)
        check_wait(wait_seconds)
        call = parse_options(options)
        request = self._starts.build_goal_request(key, goal)
        await self._check_chain(chain, principal)

        async def start(request: StartRequest | None) -> ExecutionState:
            await self.wait_for_catalogue()
            thread, combined, context = await self._threads.prepare(
                thread_id, principal, {"synthesize": not plan_only, **call}, implied="synthesize", given=options
            )
            return await self.engine.create(
                thread_id=thread,
                principal=principal,
                goal=goal,
                options=combined,
                plan_only=plan_only,
                context=context,
                client_id=client_id,
                host=host,
                chain=tuple(chain),
                start=request,
            )

        execution = await self._starts.start_once(principal, request, start)
        return await self._wait(execution, wait_seconds, call)

    async def execute_plan(
        self,
        plan: JsonValue = None,
        *,
        goal: str | None = None,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        principal: str,
        client_id: str | None = None,
        host: str | None = None,
        chain: Sequence[str] = (),
    ) -> Execution:
        """Runs the given plan, the planned one of the thread, or its incomplete one with a larger budget.

        A known `key` starts nothing. Without a key, the execution warns of an unfinished one of the same plan.
        """
        call = parse_options(options)
        check_wait(wait_seconds)
        if plan is None:
            execution = await self._run_planned(thread_id, key, call, principal, client_id)
            return await self._wait(execution, wait_seconds, call)
        if goal is not None:
            check_text(goal, "goal", MAX_GOAL_CHARS)
        # A key is looked up before the plan is checked: its tools may be gone since the plan ran.
        request = None if key is None else self._starts.build_plan_request(key, goal, plan)
        await self._check_chain(chain, principal)

        async def start(request: StartRequest | None) -> ExecutionState:
            names = read_tool_names(plan)
            await self.wait_for_tools(names)
            self._check_servers(names)
            parsed, warnings, earlier = await self._check_plan(plan, thread_id, principal)
            thread, combined, _ = await self._threads.prepare(thread_id, principal, call)
            return await self.engine.create(
                thread_id=thread,
                principal=principal,
                goal=goal,
                plan=parsed,
                warnings=warnings,
                earlier=earlier,
                options=combined,
                client_id=client_id,
                host=host,
                chain=tuple(chain),
                start=request or self._starts.build_plan_request(None, goal, plan),
            )

        execution = await self._starts.start_once(principal, request, start)
        return await self._wait(execution, wait_seconds, call)

    async def _check_plan(
        self, plan: JsonValue, thread_id: str | None, principal: str
    ) -> tuple[Plan, tuple[str, ...], tuple[EarlierResult, ...]]:
        """The plan, warnings about it, and what it takes from earlier executions of the thread."""
        earlier: dict[Reference, EarlierResult | str] = {}
        while True:
            try:
                parsed, warnings = parse_plan(
                    plan,
                    author="caller",
                    tools=self.engine.tool_facts(),
                    max_steps=self._max_steps,
                    earlier=None if thread_id is None else earlier,
                )
                return parsed, warnings, list_earlier_results(parsed, earlier)
            except EarlierNeeded as needed:
                assert thread_id is not None
                await self._threads.read_headers(thread_id, principal)
                asking = new_execution("", thread_id, principal)
                earlier |= await self.engine.find_earlier(asking, needed.wanted)

    async def get_execution(
        self, thread_id: str, *, observations_after: int | None = None, principal: str
    ) -> Execution:
        """Returns the thread's newest execution; with `observations_after` also what happened after that number."""
        execution = await self._threads.load_newest(thread_id, principal)
        if observations_after is None:
            return self.build_view(execution)
        if observations_after < 0:
            raise InvalidArguments("observationsAfter must be 0 or more")
        recorded = await self.engine.store.read(execution.execution_id, observations_after)
        shown = [entry for entry in recorded if entry.sequence <= execution.version]
        return build_execution_view(
            execution, self.engine.tools, list(build_observations(shown, execution)), inbox=self.find_inbox(execution)
        )

    async def _check_chain(self, chain: Sequence[str], principal: str) -> None:
        """Refuses a goal that was delegated too often, or that an execution of the same principal delegated.

        The caller must not learn of executions of others; a goal that goes round through them ends at the limit.
        """
        if len(chain) > MAX_DEPTH:
            raise LimitExceeded(f"this goal was delegated {len(chain)} times, the limit is {MAX_DEPTH}")
        for execution_id in chain:
            header = await self.engine.store.header(execution_id)
            if header is not None and header.principal == principal:
                raise LimitExceeded(f"this goal comes back to where it was delegated, execution {execution_id!r}")

    async def read_artifact(self, thread_id: str, artifact_id: str, *, principal: str | None) -> Artifact:
        """Returns a whole artifact of the thread. The operator's terminal passes no `principal` and reads everybody's.

        Raises:
            UnknownArtifact: the thread has no such artifact, or belongs to another principal.
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
        """Returns open suspensions, oldest first. The operator's terminal passes no `principal` and sees all."""
        check_limit(limit)
        if thread_id is not None and principal is not None:
            await self._threads.read_headers(thread_id, principal)
        page = await self.engine.store.suspensions(
            principal=principal, thread_id=thread_id, addressee=addressee, limit=limit, cursor=cursor
        )
        found: list[Suspension] = []
        for row in page.rows:
            execution = await self.engine.find(row.execution_id)
            suspension = execution.suspensions.get(row.suspension_id)
            if suspension is not None and suspension.is_open:
                inbox = self.find_inbox(execution)
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
        """Decides a suspension; without sufficient authority nothing runs, and the view says who must decide.

        `principal` is the owner whose executions the channel may see; None for the operator's channels, which see all.
        """
        check_wait(wait_seconds)
        execution = await self.engine.find_by_suspension(thread_id, suspension_id, principal=principal)
        suspension = execution.suspensions.get(suspension_id)
        authority = assess_authority(authority, execution)
        if caller_only and suspension is not None and suspension.question.addressee != "caller":
            raise InvalidArguments(
                f"suspension {suspension_id!r} is addressed to a person; submit_answer answers only questions to the "
                "calling model; use resume_execution, which asks the person"
            )
        if authority.assurance == "claimed" and decision.approved is not False and _is_for_person(suspension):
            self._attempts.count(suspension_id)
        await self.wait_for_tools(execution.pins)
        execution, accepted = await self.engine.answer(execution, suspension_id, decision, authority)
        if accepted:
            return await self._wait(execution, wait_seconds)
        if authority.assurance == "claimed":
            await self._record_claim(execution, suspension_id, authority)
        return ask_for_person(self.build_view(execution), suspension_id)

    async def _record_claim(self, execution: ExecutionState, suspension_id: str, authority: Authority) -> None:
        """Records in the audit that the calling model tried to decide for a person."""
        facts: dict[str, JsonValue] = {
            "assurance": authority.assurance,
            "channel": authority.channel,
            "principal": authority.principal,
        }
        entry = AuditEntry(
            kind="refused", facts=facts, execution_id=execution.execution_id, suspension_id=suspension_id
        )
        await self.engine.store.audit((entry,))

    async def view_suspension(
        self, thread_id: str, suspension_id: str, *, principal: str | None
    ) -> tuple[Suspension, bool]:
        """Returns the suspension as it is now, and whether it is still open.

        Raises:
            UnknownSuspension: the principal's thread has no such suspension.
        """
        execution, found = await self._find_suspension(thread_id, suspension_id, principal)
        view = build_suspension_view(execution, found, self.engine.tools, inbox=self.find_inbox(execution))
        return view, found.is_open

    async def view_when_asked(self, thread_id: str, suspension_id: str, *, principal: str) -> Execution | None:
        """Returns the execution as it was when it first waited with this question; None if that is not open any more.

        Raises:
            UnknownSuspension: the principal's thread has no such suspension.
        """
        execution, found = await self._find_suspension(thread_id, suspension_id, principal)
        if not found.is_open:
            return None
        # The engine has imported this by now.
        from planwarden.agent.core.fold import apply

        state = new_execution(execution.execution_id, execution.thread_id, execution.principal)
        for entry in await self.engine.store.read(execution.execution_id, 0):
            state = apply(state, entry.event, entry.at)
            if suspension_id in state.suspensions and state.status != "running":
                break
        return build_execution_view(state, self.engine.tools)

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
        execution, found = await self._find_suspension(thread_id, suspension_id, principal)
        if not found.is_open:
            return self.build_view(execution)
        if attempt is not None:
            self._attempts.count(suspension_id, attempt)
        return ask_for_person(self.build_view(execution), suspension_id)

    async def cancel_execution(self, thread_id: str, *, reason: str | None = None, principal: str) -> Execution:
        """Stops the thread's execution; returns a finished one unchanged."""
        if reason is not None:
            check_text(reason, "reason", MAX_REASON_CHARS)
        execution = await self._threads.load_newest(thread_id, principal)
        execution = await self.engine.cancel(execution, reason)
        return await self._wait(execution, 5.0)

    def search_tools(self, query: str | None = None, *, limit: int = 20, cursor: str | None = None) -> ToolPage:
        """Returns lines of the catalogue, best matches first."""
        check_limit(limit)
        if query is not None:
            check_text(query, "query", MAX_QUERY_CHARS, may_be_empty=True)
        found = self.engine.tools.search(query or "", len(self.engine.tools.definitions()))
        start = parse_offset(cursor, len(found))
        page = tuple(build_tool_line(definition) for definition in found[start : start + limit])
        following = start + limit
        return ToolPage(tools=page, total=len(found), next_cursor=str(following) if following < len(found) else None)

    def get_tool_schemas(self, names: Sequence[str]) -> ToolSchemas:
        """Returns full definitions of the named tools, and the names that no tool has."""
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

    async def wait_for_tools(self, names: Iterable[str]) -> None:
        """Waits a limited time until the downstream servers that the unknown names point to have listed their tools."""
        if self.downstream is not None:
            await self.downstream.wait_until_listed(names)

    def _check_servers(self, names: Iterable[str]) -> None:
        """Raises `InvalidPlan` that says why a server's tools are missing, which `unknown tool` would not."""
        if self.downstream is None:
            return
        found = {name: why for name in sorted(names) if (why := self.downstream.unavailable_reason(name)) is not None}
        if found:
            text = "; ".join(f"{name[:128]!r} is not available: {why}" for name, why in list(found.items())[:10])
            missing: list[JsonValue] = [name[:128] for name in found]
            raise InvalidPlan(f"the plan needs tools that are not available: {text}", details={"unknownTools": missing})

    async def wait_for_catalogue(self) -> None:
        """Waits a limited time until every downstream server has listed its tools once."""
        if self.downstream is not None:
            await self.downstream.wait_until_all_listed()

    def build_view(self, execution: ExecutionState) -> Execution:
        return build_execution_view(execution, self.engine.tools, inbox=self.find_inbox(execution))

    def find_inbox(self, execution: ExecutionState) -> str | None:
        """Returns the address of the inbox; opens one if the execution waits for a person and an opener is set."""
        if (
            self.inbox_url is None
            and self.inbox_opener is not None
            and any(map(_is_for_person, execution.open_suspensions))
        ):
            self.inbox_url = self.inbox_opener.address()
        return self.inbox_url

    def call_person(self, suspension_id: str) -> None:
        """Shows the question to the person through the inbox, because the client cannot ask."""
        if self.inbox_opener is not None:
            self.inbox_opener.call_person(suspension_id)

    async def load_newest(self, thread_id: str, principal: str) -> ExecutionState:
        """Returns the folded state of the thread's newest execution."""
        return await self._threads.load_newest(thread_id, principal)

    async def _find_suspension(
        self, thread_id: str, suspension_id: str, principal: str | None
    ) -> tuple[ExecutionState, SuspensionState]:
        held = await self.engine.find_by_suspension(thread_id, suspension_id, principal=principal)
        execution = await self.engine.find(held.execution_id)
        found = execution.suspensions.get(suspension_id)
        if found is None or found.question.addressee == "clock":
            raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r} in thread {thread_id[:64]!r}")
        return execution, found

    async def _run_planned(
        self,
        thread_id: str | None,
        key: str | None,
        call: Mapping[str, object],
        principal: str,
        client_id: str | None,
    ) -> ExecutionState:
        if thread_id is None:
            raise InvalidArguments("send a 'plan', or the 'threadId' of a thread with a planned execution")

        async def start(request: StartRequest | None) -> ExecutionState:
            execution = await self._threads.load_newest(thread_id, principal)
            if execution.status not in ("planned", "incomplete"):
                raise InvalidArguments(
                    f"thread {thread_id!r} has no planned execution; its newest one is {execution.status}"
                )
            # The engine has imported this by now.
            from planwarden.agent.core.decide import find_exhausted_budget

            options = combine_options(self._options, execution.options, call)
            spent = find_exhausted_budget(replace(execution, options=options))
            if spent is not None:
                raise InvalidArguments(f"the budget of {spent} is used up; send a larger one in options.budgets")
            await self.wait_for_tools(execution.pins)
            return await self.engine.start(execution, options, client_id=client_id, request=request)

        request = self._starts.build_thread_request(key, thread_id)
        return await self._starts.start_once(principal, request, start, thread_id=thread_id)

    async def _wait(
        self, execution: ExecutionState, wait_seconds: float | None, call: Mapping[str, object] | None = None
    ) -> Execution:
        """The view when the execution stops running; waits as `wait_seconds`, the call's or its own options say."""
        chosen = (wait_seconds, (call or {}).get("wait_seconds"), execution.options.wait_seconds)
        seconds = next(found for found in chosen if isinstance(found, int | float))
        return self.build_view(await self.engine.wait(execution, seconds) if seconds else execution)


def _is_for_person(suspension: SuspensionState | None) -> bool:
    return suspension is not None and suspension.is_open and suspension.question.addressee == "human"
