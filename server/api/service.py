"""The one way into the engine. The Python API, MCP, inbox and command line differ only in the authority that they pass.

A principal sees only its own threads; those of another principal look as if they did not exist.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio
from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.approval.forecast import foresee_skips
from planwarden.agent.common.errors import (
    InvalidArguments,
    InvalidPlan,
    LimitExceeded,
    PlanChanged,
    ThreadMovedOn,
    UnknownSuspension,
)
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.control.decide import find_exhausted_budget
from planwarden.agent.core.control.retry_reuse import keep_version
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import POLICY_CHARS, AuditEntry
from planwarden.agent.core.execution.fold import apply
from planwarden.agent.core.execution.question import Addressee
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState, new_execution
from planwarden.agent.core.plan.inputs import complete_inputs
from planwarden.agent.core.plan.plan import MAX_ID_CHARS, plan_to_json
from planwarden.agent.ports.store import StartRequest
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.new_execution import NewExecution, StartOptions
from planwarden.server.api.business_keys import OnceService
from planwarden.server.api.grants import GrantService
from planwarden.server.api.limits import (
    MAX_GOAL_CHARS,
    MAX_PAGE,
    MAX_REASON_CHARS,
    AttemptKind,
    AttemptLimiter,
    check_limit,
    check_text,
)
from planwarden.server.api.retries import build_moved_error, choose_inputs, find_requester, start_retry
from planwarden.server.api.starts import (
    CreateRun,
    Starts,
    add_plan,
    build_plan_request,
    build_question_plan,
    build_request,
)
from planwarden.server.api.tools import find_seen_shape, read_artifact
from planwarden.server.api.waiting import list_open_suspensions
from planwarden.server.plans.library import PlanLibrary
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.options import combine_options, continue_run, read_options, reject_run_options
from planwarden.server.settings.policy import assess_authority
from planwarden.server.views.execution import Execution, ask_for_person, build_execution_view, show_step
from planwarden.server.views.forecast import Forecast, build_forecast
from planwarden.server.views.observations import build_observations
from planwarden.server.views.suspension import Program, Suspension, SuspensionPage, build_suspension_view, name_program
from planwarden.server.views.tools import MAX_PAGE_ITEMS, NOT_SEEN, PAGE_ITEMS, ToolSchemas, ToolView, build_tool_view
from planwarden.tools.delegate.child import MAX_DEPTH
from planwarden.tools.downstream.servers import DownstreamServers

ASKED_WITHIN_S = 5.0
"""The most seconds that `ask_person` waits until its question is asked; nobody can answer it sooner."""
LOOK_AGAIN_S = 3.0
"""Seconds after which `wait_until_finished` checks again whether another process recorded an answer."""


class InboxOpener(Protocol):
    """Opens the inbox when a person must decide."""

    def address(self) -> str | None:
        """Open the inbox if necessary, and return its address; None if the inbox cannot be opened."""
        ...

    def show_in_browser(self, suspension_id: str) -> None:
        """Show the person the question directly, not through the client, if that is possible."""
        ...


class Service:
    """What a caller can ask of one engine. Methods raise `PlanwardenError` with a documented code."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        downstream: DownstreamServers | None = None,
        library: PlanLibrary | None = None,
        is_caller_model: bool = False,
        program: Program = name_program,
    ) -> None:
        self._engine = engine
        self.store, self.tools, self.policy = engine.store, engine.tools, engine.grants.policy
        self.create, self.find, self.find_by_suspension = engine.create, engine.find, engine.find_by_suspension
        self.wait, self.wait_for_change = engine.wait, engine.wait_for_change
        self.cancel, self.renew = engine.cancel, engine.renew
        self.tick, self.listen, self.streamed_text = engine.tick, engine.listen, engine.streamed_text
        self.may_run, self.check_recording, self.owner = engine.may_run, engine.check_recording, engine.owner
        self.read_artifact = partial(read_artifact, engine.store)
        self.downstream = downstream
        self.is_caller_model = is_caller_model
        """Whether the calling model answers the prompts, which it gets as questions."""
        self.settings = settings
        self.program = program
        """Returns the beginning of every command line that a person is told to type for this home."""
        if downstream is not None and downstream.configs:
            engine.listen(downstream.handle_commit)
        self._starts = Starts(engine, settings, library or PlanLibrary({}), downstream)
        self.load_newest, self.wait_for_tools = self._starts.load_newest, self._starts.wait_for_tools
        self.check_plan = self._starts.check
        self.plans, self.look_at_plans = self._starts.library.list_lines, self._starts.library.look
        self._options = settings.options
        self._attempts = AttemptLimiter(engine.store, program)
        self.grants = GrantService(self._starts)
        """Standing approvals."""
        self.once = OnceService(engine.store)
        """Business keys of calls that happen once."""
        self.asking: list[tuple[str, str]] = []
        """The principal and the thread of each gated call whose question is about to open, in the order of arrival."""
        self.inbox_url: str | None = None
        """Address of the inbox while one runs."""
        self.inbox_opener: InboxOpener | None = None
        """Opens an inbox when an execution first waits for a person."""

    async def run_goal(self, goal: str, start: StartOptions, *, plan_only: bool = False) -> ExecutionState:
        """Plan for the goal, run the plan and return its execution; with `plan_only`, stop at `planned`."""
        check_text(goal, "goal", MAX_GOAL_CHARS)
        call = read_options(start.options)
        if plan_only:
            reject_run_options(call)

        async def create(request: StartRequest | None) -> ExecutionState:
            await self.wait_for_catalogue()
            thread = await self._starts.prepare(start, {"synthesize": not plan_only, **call}, makes_plan=True)
            return await self.create(
                NewExecution(thread=thread, requester=start.requester, goal=goal, plan_only=plan_only, start=request)
            )

        return await self._start(start, build_request(start.key, {"goal": goal}, call), create)

    async def execute_plan(
        self, plan: JsonValue, start: StartOptions, *, saved_plan: ev.PlanVersion | None = None
    ) -> ExecutionState:
        """Run the plan; without one, run the thread's planned or rehearsed plan, or continue its incomplete execution.

        Return the execution, which records `saved_plan` as the plan's source. Without a key, the execution warns of an
        unfinished execution of the same plan.
        """
        try:
            call = read_options(start.options)
        except InvalidArguments as error:
            if plan is not None:
                await self._add_plan_faults(error, plan, start)
            raise
        if plan is None:
            return await self._run_planned(start, call)
        if start.goal is not None:
            check_text(start.goal, "goal", MAX_GOAL_CHARS)
        # Look up the key before checking the plan, whose tools may be gone since the key started it.
        request = build_plan_request(start, plan, call)
        return await self._start(start, request, lambda new: self._create_from_plan(plan, start, call, new, saved_plan))

    async def run_plan(self, name: str, start: StartOptions, *, shown_digest: str | None = None) -> ExecutionState:
        """Run the saved plan of that name from its present file, as `execute_plan` does, and record which version ran.

        A key that was used before starts nothing, even if the file is gone. `shown_digest` is the digest of the
        version that a person saw.

        Raises:
            PlanChanged: the saved plan now has another version than `shown_digest`.
        """
        check_text(name, "name", MAX_GOAL_CHARS, may_be_empty=True)
        call = read_options(start.options)

        async def create(request: StartRequest | None) -> ExecutionState:
            saved = await self._starts.library.find(name)
            if shown_digest is not None and shown_digest != saved.digest:
                raise PlanChanged
            version = ev.PlanVersion(name=saved.name, digest=saved.digest)
            return await self._create_from_plan(
                saved.document, replace(start, goal=saved.title), call, request, saved_plan=version
            )

        # The content omits the plan: a repeated request returns the first run even if the plan has changed.
        content: dict[str, JsonValue] = {"savedPlan": name, "inputs": dict(start.inputs or {})}
        return await self._start(start, build_request(start.key, content, call), create)

    async def retry(
        self, thread_id: str, start: StartOptions, *, from_step: str | None = None, plan: JsonValue = None
    ) -> ExecutionState:
        """Return a new execution that continues the thread's last one; `from_step` and what depends on it run again."""
        if from_step is not None:
            check_text(from_step, "fromStep", MAX_ID_CHARS)
        inputs: JsonValue = None if start.inputs is None else dict(start.inputs)
        content: dict[str, JsonValue] = {"retry": thread_id, "fromStep": from_step, "inputs": inputs, "plan": plan}
        request = build_request(start.key, content) or StartRequest()
        start = replace(start, thread_id=thread_id)
        return await self._start(
            start, request, lambda new: start_retry(self._starts, start, from_step, plan, new or request)
        )

    async def ask_person(
        self,
        message: str,
        start: StartOptions,
        *,
        details: JsonValue = None,
        form: JsonValue = None,
        addressee: str | None = None,
    ) -> ExecutionState:
        """Ask a person to confirm or to fill in the form; return the execution when the question is asked."""
        plan = build_question_plan(message, details, form, addressee)
        return await self.wait(await self.execute_plan(plan, start), ASKED_WITHIN_S)

    async def wait_until_finished(self, execution: ExecutionState, seconds: float) -> ExecutionState:
        """Return the execution when it has ended, even if another process ends it, or after `seconds`."""
        with anyio.move_on_after(seconds):
            while not execution.is_finished:
                with anyio.move_on_after(LOOK_AGAIN_S):
                    await self.wait_for_change(execution)
                execution = await self.wait(await self.find(execution.execution_id), seconds)
        return execution

    async def _start(self, start: StartOptions, request: StartRequest | None, create: CreateRun) -> ExecutionState:
        """Return the execution that `create` starts, or that the key has started before. Refuse a goal that was
        delegated too often, or that comes back to an execution of the same principal. If the goal circles through
        executions of other principals, only the limit stops it: the caller must not learn of them.
        """
        requester = start.requester
        if len(requester.chain) > MAX_DEPTH:
            raise LimitExceeded(f"this goal was delegated {len(requester.chain)} times, the limit is {MAX_DEPTH}")
        for execution_id in requester.chain:
            header = await self.store.header(execution_id)
            if header is not None and header.principal == requester.principal:
                raise LimitExceeded(f"this goal comes back to where it was delegated, execution {execution_id!r}")
        return await self._starts.start_once(start, request, create)

    async def _create_from_plan(
        self,
        plan: JsonValue,
        start: StartOptions,
        call: Mapping[str, object],
        request: StartRequest | None,
        saved_plan: ev.PlanVersion | None = None,
    ) -> ExecutionState:
        """Check a plan and its inputs, and create its execution. All plans of callers pass here, except in a retry."""
        parsed = await self._starts.check(plan, thread_id=start.thread_id, principal=start.requester.principal)
        inputs = complete_inputs(parsed.plan.inputs, start.inputs)
        return await self.create(
            NewExecution(
                thread=await self._starts.prepare(start, call),
                requester=start.requester,
                goal=start.goal,
                parsed=parsed,
                inputs=inputs,
                saved_plan=saved_plan,
                start=add_plan(request, start, plan, call),
            )
        )

    async def _add_plan_faults(self, error: InvalidArguments, plan: JsonValue, start: StartOptions) -> None:
        """If the plan has faults, raise them together with those in `error`, so that the caller learns all of them."""
        try:
            await self._starts.check(plan, thread_id=start.thread_id, principal=start.requester.principal)
        except InvalidPlan as other:
            raise InvalidPlan(f"{other.message}; also: {error.message}", details=other.details) from None

    async def _run_planned(self, start: StartOptions, call: Mapping[str, object]) -> ExecutionState:
        thread_id, requester = start.thread_id, start.requester
        if thread_id is None:
            raise InvalidArguments(
                "send a 'plan', or the 'threadId' of a thread with a planned execution; run_goal takes a goal alone"
            )

        async def create(request: StartRequest | None) -> ExecutionState:
            execution = await self.load_newest(thread_id, requester.principal)
            if execution.status == "rehearsed":
                return await self._run_rehearsed(execution, start, call, request)
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
            client_id = requester.client_id
            return await self._engine.start(
                execution, options, client_id=client_id, request=request, inputs=start.inputs
            )

        inputs: dict[str, JsonValue] = {"inputs": dict(start.inputs)} if start.inputs else {}
        request = build_request(start.key, {"thread": thread_id, **inputs}, call)
        return await self._starts.start_once(start, request, create, thread_id=thread_id)

    async def _run_rehearsed(
        self, rehearsal: ExecutionState, start: StartOptions, call: Mapping[str, object], request: StartRequest | None
    ) -> ExecutionState:
        """Run the rehearsal's plan as a new execution, and return that. Inputs that are not given keep their values."""
        plan = rehearsal.plan
        assert plan is not None
        requester = find_requester(rehearsal, start.requester, is_same_plan=True)
        inputs = choose_inputs(rehearsal, plan, start)
        start = replace(start, goal=rehearsal.goal, requester=requester, inputs=inputs)
        after = replace(request or StartRequest(), after=rehearsal.execution_id, after_version=rehearsal.version)
        try:
            return await self._create_from_plan(plan_to_json(plan), start, call, after, keep_version(rehearsal, plan))
        except ThreadMovedOn:
            raise build_moved_error(rehearsal) from None

    async def forecast_plan(
        self,
        plan: JsonValue,
        *,
        inputs: Mapping[str, JsonValue] | None = None,
        name: str | None = None,
        version: str | None = None,
        principal: str,
    ) -> Forecast:
        """Return what can be said of a plan before it runs. Nothing runs, and nothing is stored.

        `name` and `version` are those of a saved plan. If the plan requires inputs and none are given, what
        depends on them is unknown.

        Raises:
            InvalidPlan, LimitExceeded, InvalidArguments: as for `execute_plan`.
        """
        # Another process may have made a grant, and only a running engine reads new grants by itself.
        await self._engine.refresh_grants()
        checked = await self.check_plan(plan, principal=principal)
        has_inputs = inputs is not None or not (checked.plan.inputs or {}).get("required")
        filled = complete_inputs(checked.plan.inputs, inputs) if has_inputs else {}
        saved = None if name is None or version is None else ev.PlanVersion(name=name, digest=version)
        created = ev.ExecutionCreated(options=self._options, saved_plan=saved)
        execution = apply(new_execution("", "", principal), created, 0.0)
        execution = apply(execution, ev.PlanAccepted(plan=checked.plan, inputs=filled), 0.0)
        foreseen = foresee_skips(execution, has_inputs=has_inputs)
        calls = await self._engine.forecast_whole(foreseen, has_inputs=has_inputs)
        return build_forecast(foreseen, calls, is_whole=True, has_inputs=has_inputs, warnings=checked.warnings)

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
        """Return the thread's newest execution; with `observations_after`, also the observations after that number.

        With `step_id`, the view has only that step and, if it is a loop, `items_limit` results from `items_from` on.
        """
        if step_id is None and items_from is not None:
            raise InvalidArguments("itemsFrom needs the stepId of the loop")
        check_limit(items_limit, MAX_PAGE_ITEMS)
        execution = await self.load_newest(thread_id, principal)
        view = self.build_view(execution)
        if observations_after is not None:
            if observations_after < 0:
                raise InvalidArguments("observationsAfter must be 0 or more")
            # Databases refuse larger numbers than they can store.
            recorded = await self.store.read(execution.execution_id, min(observations_after, execution.version))
            entries = [entry for entry in recorded if entry.sequence <= execution.version]
            view = replace(view, observations=tuple(build_observations(entries, execution)))
        return view if step_id is None else show_step(view, execution, step_id, items_from, items_limit)

    async def find_question(
        self, thread_id: str, suspension_id: str, *, principal: str | None
    ) -> tuple[ExecutionState, SuspensionState]:
        """Return the execution as it is now, and the suspension. What others own looks as if it did not exist.

        Raises:
            UnknownSuspension: the principal's thread has no such suspension.
        """
        execution = await self.find_by_suspension(thread_id, suspension_id, principal=principal)
        execution = await self.find(execution.execution_id)
        suspension = execution.suspensions.get(suspension_id)
        if suspension is None or suspension.question.addressee == "clock":
            raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r} in thread {thread_id[:64]!r}")
        return execution, suspension

    async def read_question(
        self, thread_id: str, suspension_id: str, *, principal: str | None
    ) -> tuple[Suspension, bool]:
        """Return the suspension as it is shown now, and whether it is still open. Raises as `find_question`."""
        execution, suspension = await self.find_question(thread_id, suspension_id, principal=principal)
        return self._view_suspension(execution, suspension), suspension.is_open

    async def view_when_asked(self, thread_id: str, suspension_id: str, *, principal: str) -> Execution | None:
        """Return the execution as it was when it first waited for this answer; None if the question is closed.

        Raises as `find_question`.
        """
        execution, suspension = await self.find_question(thread_id, suspension_id, principal=principal)
        if not suspension.is_open:
            return None
        state = new_execution(execution.execution_id, execution.thread_id, execution.principal)
        for entry in await self.store.read(execution.execution_id, 0):
            state = apply(state, entry.event, entry.at)
            if suspension_id in state.suspensions and state.status != "running":
                break
        return build_execution_view(state, self.tools, program=self.program)

    async def view_awaiting(
        self, thread_id: str, suspension_id: str, *, principal: str, attempt: AttemptKind | None = None
    ) -> Execution:
        """Return the execution; while the suspension is open, its `next_action` says how to ask the person.

        An `attempt` counts against the limit for attempts of that kind. Raises as `find_question`.

        Raises:
            RateLimited: the caller tried too often.
        """
        execution, suspension = await self.find_question(thread_id, suspension_id, principal=principal)
        if not suspension.is_open:
            return self.build_view(execution)
        if attempt is not None:
            await self._attempts.count(suspension_id, attempt)
        return ask_for_person(self.build_view(execution), suspension_id)

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
        """Return open suspensions, oldest first. The operator's terminal passes no `principal` and sees all.

        `max_rows` is as for `build_suspension_view`, `max_bytes` as for `list_open_suspensions`.
        """
        check_limit(limit)
        if thread_id is not None and principal is not None:
            await self._starts.read_headers(thread_id, principal)
        return await list_open_suspensions(
            self.store,
            self.find,
            partial(self._view_suspension, max_rows=max_rows),
            thread_id=thread_id,
            addressee=addressee,
            limit=limit,
            cursor=cursor,
            principal=principal,
            max_bytes=max_bytes,
        )

    def _view_suspension(
        self, execution: ExecutionState, suspension: SuspensionState, *, max_rows: int | None = None
    ) -> Suspension:
        inbox = self.find_inbox(execution)
        return build_suspension_view(
            execution, suspension, self.tools, inbox=inbox, program=self.program, max_rows=max_rows
        )

    async def answer(
        self,
        thread_id: str,
        suspension_id: str,
        decision: Decision,
        authority: Authority,
        *,
        principal: str | None,
        caller_only: bool = False,
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[ExecutionState, bool]:
        """Decide a suspension. Return the execution, and whether the decision was accepted. If the authority is not
        sufficient, nothing runs, and a person must decide. `then` is awaited after this answer has decided, as in
        `Engine.answer`. `principal` is the owner whose executions the channel may see; None for the operator's
        channels, which see all.
        """
        execution = await self.find_by_suspension(thread_id, suspension_id, principal=principal)
        suspension = execution.suspensions.get(suspension_id)
        authority = assess_authority(authority, execution)
        if caller_only and suspension is not None and suspension.question.addressee != "caller":
            raise InvalidArguments(
                f"suspension {suspension_id!r} is addressed to a person; submit_answer answers only questions to the "
                "calling model; use resume_execution, which asks the person"
            )
        if authority.assurance == "claimed" and decision.approved is not False and _is_for_person(suspension):
            # Record that the calling model tried to decide for a person, even if its answer is faulty.
            facts: dict[str, JsonValue] = {
                "assurance": "claimed",
                "channel": authority.channel,
                "principal": authority.principal,
                # Another warden of the same program may share the store and have another policy.
                "policy": self.settings.policy.policy_digest[:POLICY_CHARS],
            }
            ids = {"execution_id": execution.execution_id, "suspension_id": suspension_id}
            entry = AuditEntry(kind="refused", facts=facts, **ids)
            await self._attempts.count(suspension_id, entry=None if self.settings.policy.trust_caller else entry)
        await self.wait_for_tools(execution.pins)
        return await self._engine.answer(execution, suspension_id, decision, authority, then=then)

    async def cancel_execution(self, thread_id: str, *, reason: str | None = None, principal: str) -> ExecutionState:
        """Stop the thread's execution and return it; a finished one does not change."""
        if reason is not None:
            check_text(reason, "reason", MAX_REASON_CHARS)
        execution = await self.cancel(await self.load_newest(thread_id, principal), reason)
        return await self.wait(execution, 5.0)

    async def get_tool_schemas(self, names: Sequence[str], *, principal: str) -> ToolSchemas:
        """Return full definitions of the named tools, and the names that no tool has.

        For a tool without an output schema, show the shape of its last result in the principal's executions.
        """
        if not names:
            raise InvalidArguments("'names' is empty; search_tools lists names")
        if len(names) > MAX_PAGE:
            raise LimitExceeded(f"{len(names)} names were asked for, the limit is {MAX_PAGE}")
        views: list[ToolView] = []
        unknown: list[str] = []
        for name in dict.fromkeys(names):
            definition = self.tools.get(name)
            if definition is None:
                unknown.append(name[:128])
                continue
            view = build_tool_view(definition)
            if view.output_schema is None:
                shape = await find_seen_shape(self.store, self.find, name, principal)
                view = replace(view, seen_result=NOT_SEEN if shape is None else shape)
            views.append(view)
        return ToolSchemas(tools=tuple(views), unknown=tuple(unknown))

    async def wait_for_catalogue(self) -> None:
        """Wait a limited time until every downstream server has listed its tools once."""
        if self.downstream is not None:
            await self.downstream.wait_until_all_listed()

    def build_view(self, execution: ExecutionState) -> Execution:
        inbox = self.find_inbox(execution)
        view = build_execution_view(execution, self.tools, inbox=inbox, program=self.program)
        if execution.status != "planned" or execution.plan is None:
            return view
        foreseen = foresee_skips(execution, has_inputs=True)
        return replace(view, forecast=build_forecast(foreseen, self._engine.forecast(foreseen), is_whole=False))

    def open_inbox(self) -> str | None:
        """Return the address of the inbox, or None; open an inbox if there is none and an opener is set."""
        if self.inbox_url is None and self.inbox_opener is not None:
            self.inbox_url = self.inbox_opener.address()
        return self.inbox_url

    def find_inbox(self, execution: ExecutionState) -> str | None:
        """Return the address of the inbox; open one if the execution waits for a person."""
        return self.open_inbox() if any(map(_is_for_person, execution.open_suspensions)) else self.inbox_url

    def show_in_browser(self, suspension_id: str) -> None:
        """Show the question to the person through the inbox, because the client cannot ask."""
        if self.inbox_opener is not None:
            self.inbox_opener.show_in_browser(suspension_id)


def _is_for_person(suspension: SuspensionState | None) -> bool:
    return suspension is not None and suspension.is_open and suspension.question.addressee == "human"
