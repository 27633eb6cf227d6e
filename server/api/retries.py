"""Goes on from the last execution of a thread: what is kept, what runs again, and that it happens once."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.errors import (
    InvalidArguments,
    InvalidPlan,
    NotRetryable,
    ThreadMovedOn,
)
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.bindings import EarlierNeeded, EarlierResult, Reference
from planwarden.agent.core.inputs import fill_inputs
from planwarden.agent.core.plan import Plan, ToolFacts, list_earlier_results, list_step_tools, plan_to_json
from planwarden.agent.core.plan_parser import read_tool_names
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.retry_reuse import keep_version, take_over
from planwarden.agent.core.state import ExecutionState, new_execution
from planwarden.agent.ports.store import StartRequest
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.retry import Retry, prepare_retry
from planwarden.server.api.plan_checker import PlanChecker
from planwarden.server.api.threads import PreparedThread, Threads
from planwarden.server.views.status_text import GOES_ON_FROM


class RetryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants of the last execution of a thread."""

    from_step: str | None
    inputs: Mapping[str, JsonValue] | None
    """Those that it does not name stay, where the plan takes the same inputs."""
    plan: JsonValue
    """None for the plan of the execution."""
    requester: Requester


class _Opened(msgspec.Struct, frozen=True):
    """A thread that can go on."""

    source: ExecutionState
    thread: PreparedThread
    document: JsonValue
    """The plan; None only where the source has none either."""


class RetryStarter:
    """Starts executions that go on from others, in one engine."""

    def __init__(self, engine: Engine, threads: Threads, checker: PlanChecker) -> None:
        self._engine = engine
        self._threads = threads
        self._checker = checker

    async def start(self, thread_id: str, asked: RetryRequest, request: StartRequest) -> ExecutionState:
        """Returns the new execution, already running.

        Raises:
            NotRetryable: it is completed and no step is named, something would be done twice, or the thread moved on.
            InvalidPlan, InvalidArguments, LimitExceeded: the plan, the inputs or the step do not fit.
            UnknownThread, ThreadBusy: the requester has no such thread, or it is not over.
        """
        opened = await self._open(thread_id, asked)
        source = opened.source
        request = replace(request, after=source.execution_id, after_version=source.version)
        try:
            if opened.document is None:
                return await self._plan_again(opened, asked, request)
            return await self._go_on(opened, asked, request)
        except ThreadMovedOn:
            raise NotRetryable(
                f"execution {source.execution_id!r} is no longer the last one of thread {source.thread_id!r}, or was "
                "continued meanwhile; look at the thread with get_execution before anything is retried",
                details={"executionId": source.execution_id},
            ) from None

    async def _open(self, thread_id: str, asked: RetryRequest) -> _Opened:
        source = await self._threads.load_newest(thread_id, asked.requester.principal)
        thread = await self._threads.prepare(thread_id, asked.requester.principal, {})
        document = asked.plan
        await self._checker.wait_for_tools({*source.pins, *read_tool_names(document)})
        if source.status not in GOES_ON_FROM and not (source.status == "completed" and asked.from_step is not None):
            advice = "; fromStep names a step to run again, with everything that depends on it"
            raise NotRetryable(
                f"execution {source.execution_id!r} is {source.status}{advice if source.status == 'completed' else ''}",
                details={"executionId": source.execution_id, "status": source.status},
            )
        if document is None and source.plan is not None:
            document = plan_to_json(source.plan)
        return _Opened(source, thread, document)

    async def _plan_again(self, opened: _Opened, asked: RetryRequest, request: StartRequest) -> ExecutionState:
        source = opened.source
        if asked.from_step is not None or asked.inputs is not None:
            raise InvalidArguments(
                f"execution {source.execution_id!r} has no plan, so there is no step to go on from and nothing that "
                "takes inputs"
            )
        return await self._engine.create(
            thread_id=source.thread_id,
            requester=_find_requester(source, asked),
            goal=source.goal,
            options=source.options,
            plan_only=source.plan_only,
            context=opened.thread.context,
            effects=opened.thread.effects,
            start=request,
            retry=Retry(execution_id=source.execution_id),
        )

    async def _go_on(self, opened: _Opened, asked: RetryRequest, request: StartRequest) -> ExecutionState:
        source = opened.source
        plan, warnings, earlier = await self._check_plan(source, opened.document)
        inputs = fill_inputs(plan.inputs, _choose_inputs(source, plan, asked.inputs))
        taken = take_over(source, plan, inputs, asked.from_step)
        self._check_tools(plan, taken, opened.document)
        return await self._engine.create(
            thread_id=source.thread_id,
            requester=_find_requester(source, asked),
            goal=source.goal,
            plan=plan,
            warnings=warnings,
            earlier=earlier,
            inputs=inputs,
            options=source.options,
            plan_only=source.plan_only,
            effects=opened.thread.effects,
            saved_plan=keep_version(source, plan),
            start=request,
            retry=await prepare_retry(self._engine.store, source, taken),
        )

    async def _check_plan(
        self, source: ExecutionState, document: JsonValue
    ) -> tuple[Plan, tuple[str, ...], tuple[EarlierResult, ...]]:
        """The plan, warnings about it, and what it takes from earlier executions; `source` took some of that before."""
        earlier: dict[Reference, EarlierResult | str] = dict(source.earlier)
        completed = tuple(state.step for state in source.steps.values() if state.status == "completed")
        # A step that is not done again needs no tool.
        unneeded = {name: ToolFacts(is_blocking=True) for step in completed for name in list_step_tools(step)}
        while True:
            try:
                plan, warnings = await self._checker.parse(
                    document,
                    tools={**unneeded, **self._engine.tool_facts()},
                    earlier=earlier,
                    known=Plan(steps=completed),
                )
                return plan, warnings, list_earlier_results(plan, earlier)
            except EarlierNeeded as needed:
                asking = new_execution("", source.thread_id, source.principal)
                earlier |= await self._engine.lookups.find_thread_results(asking, needed.wanted)

    def _check_tools(self, plan: Plan, taken: ev.StepsTakenOver, document: JsonValue) -> None:
        """Raises `InvalidPlan` when a step that has to run needs a tool that is not there."""
        done = {step.step_id for step in taken.steps if step.is_completed}
        needed = {name for step in plan.steps if step.step_id not in done for name in list_step_tools(step)}
        missing = needed - self._engine.tool_facts().keys()
        if missing:
            self._checker.check_servers(missing & read_tool_names(document))
            listed = sorted(missing)
            raise InvalidPlan(
                f"the steps that are left need unknown tools: {', '.join(map(repr, listed[:10]))}",
                details={"unknownTools": list[JsonValue](listed[:50])},
            )


def _choose_inputs(
    source: ExecutionState, plan: Plan, given: Mapping[str, JsonValue] | None
) -> Mapping[str, JsonValue] | None:
    """Returns what the new execution is given: what it does not name stays, where the plan takes the same inputs."""
    if given is None:
        return source.inputs if plan.inputs is not None else None
    takes_same = source.plan is not None and source.plan.inputs == plan.inputs
    return {**source.inputs, **given} if takes_same else given


def _find_requester(source: ExecutionState, asked: RetryRequest) -> Requester:
    """Who asks: without a person who retries it in a channel of the operator, it stays the doing of who started it."""
    is_operator = source.is_operators if asked.plan is None else asked.requester.is_operator
    requester = replace(asked.requester, is_operator=is_operator)
    return requester if requester.starter is not None else replace(requester, starter=source.starter)
