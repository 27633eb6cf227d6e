"""The one way into the engine. The Python API, MCP, inbox and command line differ only in the authority that they pass.

A principal sees only its own threads; those of another principal look as if they did not exist.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio
from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.approval.forecast import foresee_skips
from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import (
    InvalidArguments,
    LimitExceeded,
    PlanChanged,
)
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.decide import find_exhausted_budget
from planwarden.agent.core.plan_words import MAX_ID_CHARS
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.agent.core.suspension_kinds import Addressee
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.store import StartRequest
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.asking import build_question_plan
from planwarden.server.api.audit import AuditReader
from planwarden.server.api.business_keys import OnceService
from planwarden.server.api.grants import GrantService
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
from planwarden.server.api.plan_checker import ParsedPlan, PlanChecker
from planwarden.server.api.result_shapes import find_seen_shape, read_artifact
from planwarden.server.api.retries import RetryRequest, RetryStarter
from planwarden.server.api.saved_plans import SavedPlans
from planwarden.server.api.starts import Starts
from planwarden.server.api.suspension_reader import SuspensionReader, list_open_suspensions
from planwarden.server.api.threads import Threads
from planwarden.server.auth.proof import assess_authority
from planwarden.server.plans.folders import PlanCatalogue
from planwarden.server.plans.library import PlanLibrary
from planwarden.server.settings.options import check_is_run, combine_options, continue_run, read_options
from planwarden.server.settings.tables import RETENTION_DAYS
from planwarden.server.views.execution import Execution, ask_for_person, build_execution_view, show_step
from planwarden.server.views.forecast import Forecast, build_forecast
from planwarden.server.views.loop_items import MAX_PAGE_ITEMS, PAGE_ITEMS
from planwarden.server.views.observations import build_observations
from planwarden.server.views.saved_plans import SavedPlanLine
from planwarden.server.views.suspension import Program, SuspensionPage, name_program
from planwarden.server.views.tools import NOT_SEEN, ToolPage, ToolSchemas, ToolView, build_tool_line, build_tool_view
from planwarden.tools.delegate.child import MAX_DEPTH
from planwarden.tools.downstream.servers import DownstreamServers

ASKED_WITHIN_S = 5.0
"""How long `ask_person` waits until the question is asked, whatever the caller says: nobody can answer before."""
LOOK_AGAIN_S = 3.0
"""How often `ask_person` looks whether another process recorded the answer."""
_NUMBERS = (int, float)


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
        engine: Engine,
        options: ev.Options,
        *,
        max_steps: int,
        downstream: DownstreamServers | None = None,
        library: PlanLibrary | None = None,
        is_caller_model: bool = False,
        retention_days: int = RETENTION_DAYS,
        program: Program = name_program,
    ) -> None:
        self.engine = engine
        self.downstream = downstream
        self.is_caller_model = is_caller_model
        """The calling model answers the prompts, as questions."""
        self.retention_days = retention_days
        """Days for which finished executions are kept at least."""
        self.program = program
        """What a person's command on this home begins with."""
        if downstream is not None and downstream.configs:
            engine.listen(downstream.handle_commit)
            downstream.watch_agents(engine)
        self._saved = SavedPlans(library)
        self._options = options
        self._max_steps = max_steps
        self._attempts = AttemptLimiter(engine.store.clock, program)
        self._threads = Threads(engine, options)
        self._checker = PlanChecker(engine, self._saved, self._threads, downstream, options, max_steps=max_steps)
        self._starts = Starts(engine)
        self.suspensions = SuspensionReader(
            engine, self._attempts, build_view=self.build_view, find_inbox=self.find_inbox, program=program
        )
        self.grants = GrantService(engine, self._saved, self._checker.read_saved)
        """Standing approvals."""
        self.once = OnceService(engine.store)
        """Business keys of calls that happen once."""
        self.audit = AuditReader(engine.store)
        """The record of questions, decisions and grants."""
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
        requester: Requester,
        plan_only: bool = False,
    ) -> Execution:
        """Plans for the goal and runs the plan; with `plan_only` stops at `planned`. A known `key` starts nothing."""
        check_text(goal, "goal", MAX_GOAL_CHARS)
        check_wait(wait_seconds)
        call = read_options(options)
        if plan_only:
            check_is_run(call)
        request = self._starts.build_goal_request(key, goal, call)
        await self._check_chain(requester)

        async def start(request: StartRequest | None) -> ExecutionState:
            await self.wait_for_catalogue()
            thread = await self._threads.prepare(
                thread_id,
                requester.principal,
                {"synthesize": not plan_only, **call},
                implied="synthesize",
                given=options,
            )
            return await self.engine.create(
                thread_id=thread.thread_id,
                requester=requester,
                goal=goal,
                options=thread.options,
                plan_only=plan_only,
                context=thread.context,
                effects=thread.effects,
                start=request,
            )

        execution = await self._starts.start_once(requester.principal, request, start)
        return await self._wait(execution, wait_seconds, call)

    async def execute_plan(
        self,
        plan: JsonValue = None,
        *,
        inputs: Mapping[str, JsonValue] | None = None,
        goal: str | None = None,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        requester: Requester,
    ) -> Execution:
        """Runs the given plan with `inputs`, the planned one of the thread, or its incomplete one with a larger budget.

        A known `key` starts nothing. Without a key, the execution warns of an unfinished one of the same plan.
        """
        call = read_options(options)
        check_wait(wait_seconds)
        if plan is None:
            if inputs:
                raise InvalidArguments("inputs go with a plan; the one of the thread was given its inputs before")
            execution = await self._run_planned(thread_id, key, call, requester)
            return await self._wait(execution, wait_seconds, call)
        if goal is not None:
            check_text(goal, "goal", MAX_GOAL_CHARS)
        # A key is looked up before the plan is checked: its tools may be gone since the plan ran.
        request = None if key is None else self._starts.build_plan_request(key, goal, plan, inputs, call)
        await self._check_chain(requester)
        start = partial(self._start_plan, plan, inputs, goal, call, thread_id, requester)
        execution = await self._starts.start_once(requester.principal, request, start)
        return await self._wait(execution, wait_seconds, call)

    async def run_plan(
        self,
        name: str,
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        requester: Requester,
        shown: str | None = None,
    ) -> Execution:
        """Runs the saved plan of that name as its file is now, as `execute_plan` does, and records which version ran.

        A known `key` starts nothing, also when the file has changed or is gone since. `shown` is the digest of
        the version that a person saw.

        Raises:
            PlanChanged: the plan is another version now.
        """
        call = read_options(options)
        check_wait(wait_seconds)
        request = self._starts.build_saved_request(key, name, inputs, call)
        await self._check_chain(requester)

        async def start(request: StartRequest | None) -> ExecutionState:
            saved = await self._saved.find(name)
            if shown is not None and shown != saved.digest:
                raise PlanChanged
            version = ev.PlanVersion(name=saved.name, digest=saved.digest)
            return await self._start_plan(
                saved.document, inputs, saved.title, call, thread_id, requester, request, version
            )

        execution = await self._starts.start_once(requester.principal, request, start)
        return await self._wait(execution, wait_seconds, call)

    async def plans(self) -> tuple[SavedPlanLine, ...]:
        """Returns the saved plans by name. Files that cannot be used are left out; `planwarden doctor` names them."""
        return await self._saved.list()

    async def look_at_plans(self) -> PlanCatalogue:
        """Returns what the folders of plans hold now, with the files that cannot be used and why: for the operator."""
        return await self._saved.look()

    async def check_plan(self, plan: JsonValue, *, principal: str) -> ParsedPlan:
        """Return the plan as a run would begin with it now. Raises `InvalidPlan`, `LimitExceeded`."""
        return await self._checker.check(plan, thread_id=None, principal=principal)

    async def _start_plan(
        self,
        plan: JsonValue,
        inputs: Mapping[str, JsonValue] | None,
        goal: str | None,
        call: Mapping[str, object],
        thread_id: str | None,
        requester: Requester,
        request: StartRequest | None,
        saved_plan: ev.PlanVersion | None = None,
    ) -> ExecutionState:
        """Checks a plan and its inputs, and creates its execution: the one way in for every given plan."""
        checked = await self._checker.check(plan, thread_id=thread_id, principal=requester.principal)
        filled = checked.fill_inputs(inputs)
        thread = await self._threads.prepare(thread_id, requester.principal, call)
        if request is None or request.plan is None:
            of_plan = self._starts.build_plan_request(None, goal, plan, inputs, call)
            request = of_plan if request is None else replace(request, plan=of_plan.plan)
        return await self.engine.create(
            thread_id=thread.thread_id,
            requester=requester,
            goal=goal,
            plan=checked.plan,
            warnings=checked.warnings,
            earlier=checked.earlier,
            inputs=filled,
            options=thread.options,
            effects=thread.effects,
            saved_plan=saved_plan,
            start=request,
        )

    async def ask_person(
        self,
        message: str,
        *,
        details: JsonValue = None,
        form: JsonValue = None,
        addressee: str | None = None,
        key: str | None = None,
        wait_seconds: float | None = None,
        requester: Requester,
    ) -> Execution:
        """Asks a person for a confirmation, or to fill in the form; waits for the answer as `wait_seconds` says."""
        check_wait(wait_seconds)
        plan = build_question_plan(message, details, form, addressee)
        view = await self.execute_plan(plan, key=key, wait_seconds=0, requester=requester)
        execution = await self.engine.find(view.execution_id)
        seconds = execution.options.wait_seconds if wait_seconds is None else wait_seconds
        execution = await self.engine.wait(execution, max(seconds, ASKED_WITHIN_S))
        with anyio.move_on_after(seconds):
            while not execution.is_finished:
                with anyio.move_on_after(LOOK_AGAIN_S):
                    await self.engine.wait_for_change(execution)
                execution = await self.engine.wait(await self.engine.find(execution.execution_id), seconds)
        return self.build_view(execution)

    async def retry(
        self,
        thread_id: str,
        *,
        from_step: str | None = None,
        inputs: Mapping[str, JsonValue] | None = None,
        plan: JsonValue = None,
        key: str | None = None,
        wait_seconds: float | None = None,
        requester: Requester,
    ) -> Execution:
        """Goes on from the thread's last execution without repeating what is completed, or again from a step on."""
        check_wait(wait_seconds)
        if from_step is not None:
            check_text(from_step, "fromStep", MAX_ID_CHARS)
        request = self._starts.build_retry_request(key, thread_id, from_step=from_step, inputs=inputs, plan=plan)
        asked = RetryRequest(from_step=from_step, inputs=inputs, plan=plan, requester=requester)
        starter = RetryStarter(self.engine, self._threads, self._checker)
        await self._check_chain(requester)

        async def start(new: StartRequest | None) -> ExecutionState:
            return await starter.start(thread_id, asked, new or request)

        return await self._wait(await self._starts.start_once(requester.principal, request, start), wait_seconds)

    async def forecast_plan(
        self,
        plan: JsonValue,
        *,
        inputs: Mapping[str, JsonValue] | None = None,
        name: str | None = None,
        version: str | None = None,
        principal: str,
    ) -> Forecast:
        """Returns what can be said of a plan before it runs. Nothing runs, and nothing is stored.

        `name` and `version` are those of the plan, if it is a saved one.

        Without the inputs that it needs, what depends on them is not known.

        Raises:
            InvalidPlan, LimitExceeded, InvalidArguments: as for `execute_plan`.
        """
        return await self._checker.forecast(plan, inputs, name=name, version=version, principal=principal)

    async def get_execution(
        self,
        thread_id: str,
        *,
        observations_after: int | None = None,
        step_id: str | None = None,
        items_from: int | None = None,
        items_limit: int = PAGE_ITEMS,
        principal: str,
    ) -> Execution:
        """Returns the thread's newest execution; with `observations_after` also what happened after that number.

        With `step_id` it has that step alone, of a loop with the results of `items_limit` items from `items_from` on.
        """
        if step_id is None and items_from is not None:
            raise InvalidArguments("itemsFrom needs the stepId of the loop")
        check_limit(items_limit, MAX_PAGE_ITEMS)
        execution = await self._threads.load_newest(thread_id, principal)
        view = self.build_view(execution)
        if observations_after is not None:
            if observations_after < 0:
                raise InvalidArguments("observationsAfter must be 0 or more")
            recorded = await self.engine.store.read(execution.execution_id, observations_after)
            shown = [entry for entry in recorded if entry.sequence <= execution.version]
            view = replace(view, observations=tuple(build_observations(shown, execution)))
        return view if step_id is None else show_step(view, execution, step_id, items_from, items_limit)

    async def _check_chain(self, requester: Requester) -> None:
        """Refuses a goal that was delegated too often, or that an execution of the same principal delegated.

        The caller must not learn of executions of others; a goal that goes round through them ends at the limit.
        """
        if not requester.chain:
            return
        if len(requester.chain) > MAX_DEPTH:
            raise LimitExceeded(f"this goal was delegated {len(requester.chain)} times, the limit is {MAX_DEPTH}")
        for execution_id in requester.chain:
            header = await self.engine.store.header(execution_id)
            if header is not None and header.principal == requester.principal:
                raise LimitExceeded(f"this goal comes back to where it was delegated, execution {execution_id!r}")

    async def read_artifact(self, thread_id: str, artifact_id: str, *, principal: str | None) -> Artifact:
        """Returns a whole artifact of the thread. The operator's terminal passes no `principal` and reads everybody's.

        Raises:
            UnknownArtifact: the thread has no such artifact, or belongs to another principal.
        """
        return await read_artifact(self.engine.store, thread_id, artifact_id, principal=principal)

    async def list_suspensions(
        self,
        *,
        thread_id: str | None = None,
        addressee: Addressee | None = None,
        limit: int = 20,
        cursor: str | None = None,
        principal: str | None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> SuspensionPage:
        """Returns open suspensions, oldest first. The operator's terminal passes no `principal` and sees all.

        `max_rows` and `max_bytes` are as for `list_open_suspensions`.
        """
        check_limit(limit)
        if thread_id is not None and principal is not None:
            await self._threads.read_headers(thread_id, principal)
        return await list_open_suspensions(
            self.engine.store,
            self.engine.find,
            self.engine.tools,
            thread_id=thread_id,
            addressee=addressee,
            limit=limit,
            cursor=cursor,
            principal=principal,
            find_inbox=self.find_inbox,
            max_rows=max_rows,
            max_bytes=max_bytes,
            program=self.program,
        )

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
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> Execution:
        """Decides a suspension; without sufficient authority nothing runs, and the view says who must decide.

        `then` is as in `Engine.answer`: what this answer brings about besides.

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
        execution, accepted = await self.engine.answer(execution, suspension_id, decision, authority, then=then)
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

    async def get_tool_schemas(self, names: Sequence[str], *, principal: str) -> ToolSchemas:
        """Return full definitions of the named tools, and the names that no tool has.

        A tool that does not say what it returns has the shape of its last result in the principal's executions.
        """
        if not names:
            raise InvalidArguments("'names' is empty; search_tools lists names")
        if len(names) > MAX_PAGE:
            raise LimitExceeded(f"{len(names)} names were asked for, the limit is {MAX_PAGE}")
        wanted = list(dict.fromkeys(names))
        found = {name: definition for name in wanted if (definition := self.engine.tools.get(name)) is not None}
        return ToolSchemas(
            tools=tuple([await self._show_tool(definition, principal) for definition in found.values()]),
            unknown=tuple(name[:128] for name in wanted if name not in found),
        )

    async def _show_tool(self, definition: ToolDefinition, principal: str) -> ToolView:
        view = build_tool_view(definition)
        if view.output_schema is not None:
            return view
        shape = await find_seen_shape(self.engine.store, self.engine.find, definition.name, principal)
        return replace(view, seen_result=NOT_SEEN if shape is None else shape)

    async def wait_for_tools(self, names: Iterable[str]) -> None:
        """Waits a limited time until the downstream servers that the unknown names point to have listed their tools."""
        await self._checker.wait_for_tools(names)

    async def wait_for_catalogue(self) -> None:
        """Waits a limited time until every downstream server has listed its tools once."""
        if self.downstream is not None:
            await self.downstream.wait_until_all_listed()

    def build_view(self, execution: ExecutionState) -> Execution:
        inbox = self.find_inbox(execution)
        view = build_execution_view(execution, self.engine.tools, inbox=inbox, program=self.program)
        if execution.status != "planned" or execution.plan is None:
            return view
        foreseen = foresee_skips(execution, has_inputs=True)
        return replace(view, forecast=build_forecast(foreseen, self.engine.forecast(foreseen), is_whole=False))

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

    async def _run_planned(
        self,
        thread_id: str | None,
        key: str | None,
        call: Mapping[str, object],
        requester: Requester,
    ) -> ExecutionState:
        if thread_id is None:
            raise InvalidArguments(
                "send a 'plan', or the 'threadId' of a thread with a planned execution; run_goal takes a goal alone"
            )

        async def start(request: StartRequest | None) -> ExecutionState:
            execution = await self._threads.load_newest(thread_id, requester.principal)
            if execution.status not in ("planned", "incomplete"):
                raise InvalidArguments(
                    f"thread {thread_id!r} has no planned execution; its newest one is {execution.status}"
                )
            options = combine_options(self._options, execution.options, call)
            if execution.status == "incomplete":
                options = continue_run(execution.options, options, call)
            spent = find_exhausted_budget(replace(execution, options=options))
            if spent is not None:
                raise InvalidArguments(f"the budget of {spent} is used up; send a larger one in options.budgets")
            await self.wait_for_tools(execution.pins)
            return await self.engine.start(execution, options, client_id=requester.client_id, request=request)

        request = self._starts.build_thread_request(key, thread_id)
        return await self._starts.start_once(requester.principal, request, start, thread_id=thread_id)

    async def _wait(
        self, execution: ExecutionState, wait_seconds: float | None, call: Mapping[str, object] | None = None
    ) -> Execution:
        """The view when the execution stops running; waits as `wait_seconds`, the call's or its own options say."""
        chosen = (wait_seconds, (call or {}).get("wait_seconds"), execution.options.wait_seconds)
        seconds = next(found for found in chosen if isinstance(found, _NUMBERS))
        return self.build_view(await self.engine.wait(execution, seconds) if seconds else execution)


def _is_for_person(suspension: SuspensionState | None) -> bool:
    return suspension is not None and suspension.is_open and suspension.question.addressee == "human"
