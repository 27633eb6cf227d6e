"""What can be said of a plan before it runs: which calls will ask a person, and what only the run will know.

Nothing runs, and nothing is recorded. If a call takes no argument from a step of the plan, the forecast of that call
comes true, provided that tools, policy and grants stay as they are. Of most other calls, only the tool's risk is known.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import islice

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.approval.authorize import Ask, Deny, authorize, fits_call
from planwarden.agent.approval.business_keys import OnceNeeded, explain_duplicate, find_key
from planwarden.agent.approval.context import ApprovalContext, CallRequest, complete_arguments, has_changed_since_plan
from planwarden.agent.approval.questions import ask_what_tool_asks
from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, ToolError
from planwarden.agent.core.binding.bindings import INPUTS, ITEM, WHEN, find_bindings, find_references, has_bindings
from planwarden.agent.core.control.decide import find_cause_of_skip
from planwarden.agent.core.control.step_start import find_mismatch
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.plans import build_planned_calls, build_step_call
from planwarden.agent.core.execution.references import PartsNeeded, list_sources
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState
from planwarden.agent.core.plan.plan import PlanStep
from planwarden.agent.core.tool import Risk, highest_risk
from planwarden.agent.ports.policy import PathsNeeded, Requirement, describe_denial

_KNOWN = ("completed", "skipped", "rejected")
"""Statuses of a step that has its result, or will never have one."""
MAX_CALLS = 500
MAX_BYTES = 1024 * 1024
"""The most bytes of arguments that one forecast reads, because planwarden does nothing else at the same time."""


class CallForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said of one call of the plan."""

    step_id: str
    tool_name: str
    call_id: str = ""
    """Id of the call if it belongs to a loop whose items are known; empty for every other call."""
    risk: Risk | None = None
    arguments: dict[str, JsonValue] | None = None
    """The arguments with which the call will run; None when only the run will know them."""
    definition_digest: str = ""
    takes_from: tuple[str, ...] = ()
    """Where the arguments without a value yet come from: step ids, `inputs`, `item`, or "an earlier result"."""
    asks: ev.SuspensionKind | None = None
    needs: ev.Needs | None = None
    quorum: int = 1
    covers: tuple[ev.CoveredCall, ...] = ()
    covered_by: str | None = None
    """The step whose confirmation covers the call."""
    grant_id: str | None = None
    """The grant that lets the call through, whatever values come from `takes_from`."""
    has_changed: bool = False
    """Whether the tool has changed since the plan was accepted, and nobody has approved the change."""
    fault: str | None = None
    """Why the call would fail now: no such tool, unfit arguments, a rule that denies it, or a business key in use."""
    rule: ev.MatchedRule | None = None
    """The operator's rule that decides about the call."""
    once_key: str | None = None
    """The business key of the call, which no other call may have."""


def forecast_calls(
    context: ApprovalContext, execution: ExecutionState, *, has_inputs: bool = True
) -> tuple[CallForecast, ...]:
    """Return a forecast of each planned call that has not run, in plan order, up to `MAX_CALLS` and `MAX_BYTES`.

    `has_inputs` is False as long as the inputs of the plan are not known.

    Raises:
        PathsNeeded: as in `Policy.requirement`.
        OnceNeeded: as in `explain_duplicate`.
    """
    states = (state for state in execution.steps.values() if state.status != "skipped")
    calls = (call for state in states for call in _list_planned(state) if call.status == "proposed")
    forecasts: list[CallForecast] = []
    missing: dict[type[PathsNeeded | OnceNeeded], set[str]] = {}
    bytes_left = MAX_BYTES
    for call in islice(calls, MAX_CALLS):
        bytes_left -= measure_at_least(call.proposed, bytes_left + 1)
        if bytes_left < 0:
            break
        try:
            forecast = _forecast_call(context, execution, call, forecasts, has_inputs=has_inputs)
            forecasts.append(forecast)
            bytes_left -= measure_at_least(forecast.arguments, MAX_BYTES)
        except (PathsNeeded, OnceNeeded) as needed:
            # Collect the paths and keys of all calls, so that one look-up serves them all.
            missing.setdefault(type(needed), set()).update(needed.keys)
    for kind, keys in missing.items():
        raise kind(keys)
    return tuple(forecasts)


def foresee_skips(execution: ExecutionState, *, has_inputs: bool) -> ExecutionState:
    """Return the execution with each step skipped whose skip is certain: one of its conditions surely does not hold, or
    a step that it needs has ended without a result."""
    steps = dict(execution.steps)
    foreseen = replace(execution, steps=steps)
    for step_id in TopologicalSorter({name: state.step.dependencies for name, state in steps.items()}).static_order():
        state = steps[step_id]
        is_ruled_out = judge_conditions(foreseen, state.step, has_inputs=has_inputs) is False
        cause = WHEN if is_ruled_out else find_cause_of_skip(foreseen, state)
        if state.status == "pending" and cause is not None:
            condition_failed = is_ruled_out or steps[cause].condition_failed
            steps[step_id] = replace(state, status="skipped", skipped_by=cause, condition_failed=condition_failed)
    return foreseen


def judge_conditions(execution: ExecutionState, step: PlanStep, *, has_inputs: bool) -> bool | None:
    """Return whether all conditions of the step hold; None if only the run can tell."""
    sources = list_sources(execution)
    verdict: bool | None = True
    for condition in step.when:
        [binding] = find_bindings(condition.value)
        state = execution.steps.get(binding.reference.step_id)
        is_known = has_inputs if binding.reference.step_id == INPUTS else state is not None and state.status in _KNOWN
        try:
            if is_known and find_mismatch(condition, sources) is not None:
                return False
        except (InvalidArguments, LimitExceeded, PartsNeeded):
            is_known = False
        verdict = verdict if is_known else None
    return verdict


def _list_planned(state: StepState) -> Sequence[Call]:
    """Return the calls of the step. For a loop that has not begun, these are the calls of one item."""
    return state.calls if state.step.loop is None or state.items is not None else build_planned_calls(state.step)


def _forecast_call(
    context: ApprovalContext, execution: ExecutionState, call: Call, before: list[CallForecast], *, has_inputs: bool
) -> CallForecast:
    definition = context.tools.get(call.tool_name)
    if definition is None or definition.unavailable:
        why = "there is no such tool" if definition is None else definition.unavailable
        return CallForecast(step_id=call.step_id, tool_name=call.tool_name, fault=why)
    is_item_call = execution.steps[call.step_id].items is not None
    call_id = call.call_id if is_item_call else ""
    forecast = CallForecast(step_id=call.step_id, tool_name=call.tool_name, call_id=call_id, risk=definition.risk)
    request = CallRequest(context, execution, call, definition)
    if takes_from := tuple(_find_sources(execution, call, has_inputs=has_inputs)):
        likely = _find_sure_grant(request, before)
        if likely is None and (terms := _find_question_for_rows(request)) is not None:
            return replace(forecast, **terms)
        return replace(forecast, takes_from=takes_from, grant_id=likely)
    try:
        arguments = complete_arguments(request)
        judgement = _judge(request, arguments, before, has_inputs=has_inputs)
    except (InvalidArguments, ToolError) as error:
        return replace(forecast, fault=error.message)
    except PartsNeeded:
        return replace(forecast, takes_from=("an earlier result",))
    coverage = (
        (other.step_id, fits_call(row, call, definition.digest, arguments)) for other in before for row in other.covers
    )
    confirmed = next((step_id for step_id, is_named in coverage if is_named), None)
    if confirmed is not None and judgement.get("asks") == "approval":
        judgement = {"covered_by": confirmed}
    once_key = find_key(context, call.tool_name, arguments)
    if once_key is not None and "fault" not in judgement:
        repeat = _find_repeat(request, once_key, before, has_inputs=has_inputs)
        judgement = {**judgement, "once_key": once_key.key} if repeat is None else {"fault": repeat}
    return replace(
        forecast,
        arguments=arguments,
        definition_digest=definition.digest,
        has_changed=has_changed_since_plan(execution, definition),
        **judgement,
    )


def will_ask(
    context: ApprovalContext,
    execution: ExecutionState,
    step: PlanStep,
    tool_name: str,
    arguments: dict[str, JsonValue] | None,
) -> bool | None:
    """Return whether the step's call of the tool asks a person; None if only the run can tell.

    `arguments` is None if a model will write them.

    Raises:
        PathsNeeded: as in `Policy.requirement`.
    """
    definition = context.tools.get(tool_name)
    if definition is None or definition.is_blocking:
        return True
    open_names = [name for name, value in (arguments or {}).items() if has_bindings(value)]
    is_open = arguments is None or has_bindings(arguments)
    if is_open and context.policy.looks_at_arguments(definition, open_names or None):
        return None
    literal = {name: value for name, value in (arguments or {}).items() if name not in open_names}
    completed, _ = context.tools.complete(tool_name, literal)
    has_changed = has_changed_since_plan(execution, definition)
    requirement = context.find_requirement(definition, completed, is_full=has_changed)
    if requirement.needs is None:
        return None if requirement.shares else False
    call = build_step_call(step, 1, tool_name, completed)
    may_be_granted = any(context.grants.explain_no_grant(execution, call, definition, context.clock.now()))
    return None if may_be_granted or requirement.denied is not None else True


def _find_repeat(request: CallRequest, key: ev.OnceKey, before: list[CallForecast], *, has_inputs: bool) -> str | None:
    """Return why the call would be refused because another call has its business key; None if no such call is known."""
    execution, call = request.execution, request.call
    for other in before:
        step = execution.steps[other.step_id].step
        if other.once_key == key.key and judge_conditions(execution, step, has_inputs=has_inputs):
            per = " and ".join(key.values)
            return f"{call.tool_name} happens once per {per}, and step {other.step_id!r} makes the same call before"
    # A forecast that looks up nothing cannot tell whether an earlier execution has the key.
    return None if request.context.paths is None else explain_duplicate(request.context, execution, call, key)


def _find_sources(execution: ExecutionState, call: Call, *, has_inputs: bool) -> Iterator[str]:
    """Yield, without repeats, where the call takes values from that do not exist yet: steps, `inputs` or `item`."""
    plan, caller = execution.plan, execution.steps[call.step_id]
    loop = caller.step.loop
    assert plan is not None
    takes_inputs = plan.inputs is not None
    references = list(find_references(call.proposed))
    sources = [reference.step_id for reference in references]
    if loop is not None and (caller.items is None or any(reference.call is not None for reference in references)):
        # How many calls there are depends on the items, and a call may take the result of another call for its item.
        yield ITEM
        sources += [reference.step_id for reference in find_references(loop.items)]
    for step_id in dict.fromkeys(sources):
        state = execution.steps.get(step_id)
        is_open = state is not None and state.status != "completed"
        if is_open or (step_id == INPUTS and takes_inputs and not has_inputs):
            yield step_id


def _judge(
    request: CallRequest, arguments: dict[str, JsonValue], before: list[CallForecast], *, has_inputs: bool
) -> Mapping[str, object]:
    """Return, as fields of a forecast, whether the call would run, ask or fail."""
    suspend = request.context.tools.question(request.call.tool_name, arguments)
    if suspend is not None:
        question = ask_what_tool_asks(request, arguments, suspend).question
        later_risk = highest_risk(question.risk or "read", *_list_later_risks(request, has_inputs=has_inputs))
        ask = question if later_risk == (question.risk or "read") else request.context.policy.for_risk(later_risk)
        return {**_describe_ask(ask), "asks": question.kind, "covers": question.covers}
    verdict = authorize(request, arguments, uses=_count_uses(before))
    requirement = verdict.requirement
    if isinstance(verdict, Deny):
        return {"fault": describe_denial(requirement), "rule": requirement.rule}
    if isinstance(verdict, Ask):
        return {**_describe_ask(requirement), "rule": requirement.rule}
    if verdict.grant_id is not None:
        return {"grant_id": verdict.grant_id}
    if requirement.needs is None:
        return {"risk": requirement.risk, "rule": requirement.rule}
    return {"asks": "confirmation", "needs": requirement.needs, "quorum": requirement.quorum}


def _list_later_risks(request: CallRequest, *, has_inputs: bool) -> Iterator[Risk]:
    """Yield the risk of each call that the question may cover later, when the call's arguments are known."""
    context, execution = request.context, request.execution
    states = (execution.steps[step_id] for step_id in request.state.step.confirms)
    for call in (call for state in states if state.status != "skipped" for call in _list_planned(state)):
        definition = context.tools.get(call.tool_name)
        if definition is not None and any(_find_sources(execution, call, has_inputs=has_inputs)):
            requirement = _find_requirement(CallRequest(context, execution, call, definition))
            if requirement.denied is None:
                yield requirement.effective_risk


def _count_uses(before: list[CallForecast]) -> Mapping[str, int]:
    return Counter(other.grant_id for other in before if other.grant_id is not None)


def _find_question_for_rows(request: CallRequest) -> Mapping[str, object] | None:
    """Return, as fields of a forecast, the one question about all calls of a loop; None if it may not be asked."""
    context, execution, call, definition = request.context, request.execution, request.call, request.definition
    assert execution.plan is not None
    step = request.state.step
    is_confirmed = any(call.step_id in other.confirms for other in execution.plan.steps)
    is_asked = will_ask(context, execution, step, call.tool_name, None)
    if step.loop is None or is_confirmed or definition.is_blocking or not is_asked:
        return None
    has_changed = has_changed_since_plan(execution, definition)
    requirement = context.find_requirement(definition, {}, is_full=has_changed)
    return {**_describe_ask(requirement), "asks": "batch", "has_changed": has_changed}


def _describe_ask(ask: Requirement | ev.Question) -> dict[str, object]:
    return {"asks": "approval", "needs": ask.needs, "quorum": ask.quorum, "risk": ask.risk}


def _find_sure_grant(request: CallRequest, before: list[CallForecast]) -> str | None:
    """Return the id of the grant that lets the call through, whatever the missing values will be; None without one."""
    context, execution, call, definition = request.context, request.execution, request.call, request.definition
    requirement = _find_requirement(request)
    if requirement.needs is None or has_changed_since_plan(execution, definition):
        return None
    # A binding counts as an argument without a known value, so no grant that fixes this argument's value fits.
    completed, _ = context.tools.complete(call.tool_name, call.proposed)
    now, uses = context.clock.now(), _count_uses(before)
    return context.grants.find_covering(execution, call, definition, completed, requirement, now, uses=uses)


def _find_requirement(request: CallRequest) -> Requirement:
    """Return what the call needs according to the arguments that are known."""
    literal = {name: value for name, value in request.call.proposed.items() if not has_bindings(value)}
    return request.context.find_requirement(request.definition, literal)
