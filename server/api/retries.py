"""Starts an execution that continues the last execution of a thread. No execution is continued twice."""

from collections.abc import Mapping

from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, NotRetryable, ThreadMovedOn
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.control.retry_reuse import keep_version, take_over
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.inputs import complete_inputs
from planwarden.agent.core.plan.plan import Plan, ToolFacts, list_step_tools, plan_to_json
from planwarden.agent.core.plan.plan_parser import read_tool_names
from planwarden.agent.ports.store import StartRequest
from planwarden.agent.runtime.new_execution import NewExecution, ParsedPlan, Retry, StartOptions, prepare_retry
from planwarden.server.api.starts import Starts
from planwarden.server.views.status_text import RETRYABLE_STATUSES


async def start_retry(
    starts: Starts, start: StartOptions, from_step: str | None, plan: JsonValue, request: StartRequest
) -> ExecutionState:
    """Start an execution that continues the last one of the thread that `start` names, and return it.

    Without inputs in `start`, the old inputs apply. Otherwise, an input that `start` omits keeps its old value if the
    plan declares the same inputs as before, unless `start.has_all_inputs`. Without `plan`, the old plan runs.

    Raises:
        NotRetryable: a completed execution needs a `from_step`, something would be done twice, or the thread moved on.
        InvalidPlan, InvalidArguments, LimitExceeded: the plan, the inputs or the step do not fit.
        UnknownThread, ThreadBusy: the requester has no such thread, or its last execution is not over.
    """
    assert start.thread_id is not None
    execution = await starts.load_newest(start.thread_id, start.requester.principal)
    # `document` is None only if neither the caller nor the execution has a plan.
    document = plan_to_json(execution.plan) if plan is None and execution.plan is not None else plan
    thread = await starts.prepare(start, {}, makes_plan=document is None)
    await starts.wait_for_tools({*execution.pins, *read_tool_names(plan)})
    _check_status(execution, from_step)
    new = NewExecution(
        thread=replace(thread, options=execution.options),
        requester=find_requester(execution, start.requester, is_same_plan=plan is None),
        goal=execution.goal,
        plan_only=execution.plan_only,
        start=replace(request, after=execution.execution_id, after_version=execution.version),
        retry=Retry(execution_id=execution.execution_id),
        agreed=None if plan is not None or execution.agreed_plan is execution.plan else execution.agreed_plan,
    )
    try:
        if document is not None:
            new = await _add_plan(starts, new, execution, document, start, from_step)
        elif from_step is not None or start.inputs is not None:
            raise InvalidArguments(
                f"execution {execution.execution_id!r} has no plan, so there is no step to go on from and nothing "
                "that takes inputs"
            )
        return await starts.engine.create(new)
    except ThreadMovedOn:
        raise build_moved_error(execution) from None


def build_moved_error(execution: ExecutionState) -> NotRetryable:
    """Return the error for an execution that cannot be continued, because its thread already has a later one."""
    return NotRetryable(
        f"execution {execution.execution_id!r} is no longer the last one of thread {execution.thread_id!r}, or "
        "was continued in the meantime; look at the thread with get_execution before anything is retried",
        details={"executionId": execution.execution_id},
    )


async def _add_plan(
    starts: Starts,
    new: NewExecution,
    execution: ExecutionState,
    document: JsonValue,
    start: StartOptions,
    from_step: str | None,
) -> NewExecution:
    parsed = await _check_plan(starts, execution, document)
    inputs = complete_inputs(parsed.plan.inputs, choose_inputs(execution, parsed.plan, start))
    reuse = take_over(execution, parsed.plan, inputs, from_step)
    _check_tools(starts, parsed.plan, reuse, document)
    return replace(
        new,
        parsed=parsed,
        inputs=inputs,
        saved_plan=keep_version(execution, parsed.plan),
        retry=await prepare_retry(starts.engine.store, execution, reuse),
    )


async def _check_plan(starts: Starts, source: ExecutionState, document: JsonValue) -> ParsedPlan:
    """Return the plan as it would run now. Earlier results that `source` already holds are not read again."""
    completed = tuple(state.step for state in source.steps.values() if state.status == "completed")
    # The tools of completed steps may be missing, because these steps do not run again.
    unneeded = {name: ToolFacts(is_blocking=True) for step in completed for name in list_step_tools(step)}
    facts = starts.engine.tool_facts()
    # A retry may repeat a call that a host made through a gate, so here the tool of the call does not count as gated.
    own_names = facts.keys() & source.pins.keys() if source.options.is_literal else ()
    own = {name: replace(facts[name], is_gated=False) for name in own_names}
    asking = replace(new_execution("", source.thread_id, source.principal), earlier=source.earlier)
    return await starts.parse(document, asking, {**unneeded, **facts, **own}, Plan(steps=completed))


def _check_tools(starts: Starts, plan: Plan, reuse: ev.StepsTakenOver, document: JsonValue) -> None:
    """Raise `InvalidPlan` if a step that has to run needs a tool that does not exist."""
    step_ids = {step.step_id for step in reuse.steps if step.is_completed}
    needed_tools = {name for step in plan.steps if step.step_id not in step_ids for name in list_step_tools(step)}
    missing = needed_tools - starts.engine.tool_facts().keys()
    if missing:
        starts.check_servers(missing & read_tool_names(document))
        listed = sorted(missing)
        raise InvalidPlan(
            f"the steps that are left need unknown tools: {', '.join(map(repr, listed[:10]))}",
            details={"unknownTools": list[JsonValue](listed[:50])},
        )


def _check_status(execution: ExecutionState, from_step: str | None) -> None:
    is_completed = execution.status == "completed"
    if execution.status not in RETRYABLE_STATUSES and not (is_completed and from_step is not None):
        advice = ": nothing is left to run. fromStep runs a step again, and what depends on it" if is_completed else ""
        raise NotRetryable(
            f"execution {execution.execution_id!r} is {execution.status}{advice}",
            details={"executionId": execution.execution_id, "status": execution.status},
        )


def choose_inputs(source: ExecutionState, plan: Plan, start: StartOptions) -> Mapping[str, JsonValue] | None:
    """Return the new inputs; keep old values for the rest, unless `start.has_all_inputs` or the plan's inputs changed.
    Without new inputs, return the old inputs, or None if the plan takes none."""
    if start.inputs is None:
        return source.inputs if plan.inputs is not None else None
    keeps_others = not start.has_all_inputs and source.plan is not None and source.plan.inputs == plan.inputs
    return {**source.inputs, **start.inputs} if keeps_others else start.inputs


def find_requester(source: ExecutionState, requester: Requester, *, is_same_plan: bool) -> Requester:
    """Return `requester`; if it names no starter, add the starter of `source`. For the same plan, also take
    `is_operator` from `source`: a plan that a model revised is no longer the operator's.
    """
    is_own = source.is_operators and not source.is_revised if is_same_plan else requester.is_operator
    requester = replace(requester, is_operator=is_own)
    return requester if requester.starter is not None else replace(requester, starter=source.starter)
