"""One confirmation that covers several later calls: which calls its question lists.

A confirmation step may name later steps. Its question lists their calls, as far as the arguments are known by then.
If a loop's items are known, the question lists the calls of all items. After an approval, each listed call may run once
without another question.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from planwarden.agent.approval.context import ApprovalContext, CallRequest, complete_arguments, has_changed_since_plan
from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.binding.bindings import INPUTS, ITEM, ITEM_INDEX, Binding, find_bindings
from planwarden.agent.core.control.step_start import begin_step, find_items
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.plans import begin_loop
from planwarden.agent.core.execution.references import PartsNeeded, list_sources
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState
from planwarden.agent.core.tool import Risk

CoveredRow = tuple[ev.CoveredCall, Risk]
MAX_COVERED = 1_000
"""The most calls that one confirmation covers; a person is asked about the others when their turn comes."""
MAX_COVERED_BYTES = 1024 * 1024


def list_covered_calls(context: ApprovalContext, execution: ExecutionState, call: Call) -> tuple[CoveredRow, ...]:
    """Return the later calls that a question about `call` covers, with the risk of each, at most `MAX_COVERED`."""
    covered_calls: list[CoveredRow] = []
    size = 0
    for step_id in execution.steps[call.step_id].step.confirms:
        execution = look_ahead(context, execution, step_id)
        for planned in execution.steps[step_id].calls:
            row = _find_covered_call(context, execution, planned)
            size += 0 if row is None else measure_at_least(row[0].arguments, MAX_COVERED_BYTES)
            if len(covered_calls) >= MAX_COVERED or size > MAX_COVERED_BYTES:
                return tuple(covered_calls)
            if row is not None:
                covered_calls.append(row)
    return tuple(covered_calls)


def look_ahead(context: ApprovalContext, execution: ExecutionState, step_id: str) -> ExecutionState:
    """Return the execution as it is once the step's loop has begun; unchanged if the loop's items are not known yet."""
    try:
        return _begin_loop(context, execution, step_id)
    except (InvalidArguments, LimitExceeded, PartsNeeded) as error:
        if isinstance(error, PartsNeeded) and context.parts is not None:
            raise
        return execution


def _begin_loop(context: ApprovalContext, execution: ExecutionState, step_id: str) -> ExecutionState:
    """Return what `look_ahead` returns, but raise what `find_items` raises."""
    state = execution.steps[step_id]
    if state.step.loop is None or state.items is not None:
        return execution
    items = find_items(state.step, list_sources(execution, context.parts, takes_lists=True))
    return replace(execution, steps={**execution.steps, step_id: begin_loop(state, tuple(items))})


def _find_covered_call(context: ApprovalContext, execution: ExecutionState, planned: Call) -> CoveredRow | None:
    """Return the call as a question lists it, with its risk; None if the call has begun or may not run.

    Also None if its arguments are not known yet, or if its tool asks by itself or changed since the plan was accepted.
    """
    definition = context.tools.get(planned.tool_name)
    if definition is None or definition.is_blocking or planned.status != "proposed":
        return None
    if has_changed_since_plan(execution, definition):
        return None
    request = CallRequest(context, execution, planned, definition)
    try:
        arguments = complete_arguments(request)
    except (InvalidArguments, PartsNeeded) as error:
        if isinstance(error, PartsNeeded) and context.parts is not None:
            raise
        # If the arguments are not known yet, the call is judged by itself later.
        return None
    requirement = context.find_requirement(definition, arguments)
    row = build_covered_call(request, arguments), requirement.effective_risk
    return row if requirement.denied is None else None


def build_covered_call(request: CallRequest, arguments: dict[str, JsonValue]) -> ev.CoveredCall:
    """Return the call as a question about several calls lists it. Only a call of a loop is listed with its id."""
    call_id = "" if request.state.step.loop is None else request.call.call_id
    digest = request.definition.digest
    return copy_fields(ev.CoveredCall, request.call, arguments=arguments, definition_digest=digest, call_id=call_id)


def check_covered_calls(context: ApprovalContext, execution: ExecutionState, call: Call) -> None:
    """Check the later calls that a question about `call` would cover, before it is asked.

    Skip steps that are not certain to begin, loops whose items are not known yet, loops that go on after a failed item,
    and calls that take a result of an unfinished step or of an earlier call of the same item.

    Raises:
        InvalidArguments: one of these calls, or a loop, cannot run.
        PartsNeeded: parts of artifacts have to be read first.
    """
    for step_id in execution.steps[call.step_id].step.confirms:
        state = execution.steps[step_id]
        if state.status != "pending" or not _will_begin(context, execution, state):
            continue
        loop = state.step.loop
        if loop is not None and (
            loop.on_item_failure != "stop" or not _are_known(execution, find_bindings(loop.items))
        ):
            continue
        try:
            ahead = _begin_loop(context, execution, step_id)
        except (InvalidArguments, LimitExceeded) as error:
            raise InvalidArguments(
                f"nobody was asked, because the loop of step {step_id!r} cannot run: {error.message}"
            ) from None
        _check_calls(context, ahead, ahead.steps[step_id])


def _check_calls(context: ApprovalContext, execution: ExecutionState, state: StepState) -> None:
    for planned in state.calls[:MAX_COVERED]:
        definition = context.tools.get(planned.tool_name)
        if definition is None or planned.status != "proposed":
            continue
        if not _are_known(execution, find_bindings(planned.proposed)):
            continue
        try:
            complete_arguments(CallRequest(context, execution, planned, definition))
        except InvalidArguments as error:
            item = state.find_item(planned)
            where = "" if item is None else f" at index {item[1]}"
            step_id = state.step.step_id
            raise InvalidArguments(
                f"nobody was asked, because {planned.tool_name} of step {step_id!r} cannot run{where}: {error.message}"
            ) from None


def _will_begin(context: ApprovalContext, execution: ExecutionState, state: StepState) -> bool:
    """Return whether all conditions of the step are known to hold."""
    if not state.step.when:
        return True
    if not _are_known(execution, (binding for test in state.step.when for binding in find_bindings(test.value))):
        return False
    events = begin_step(execution, state.step.step_id, context.parts or {})
    return isinstance(events[0], ev.StepStarted)


def _are_known(execution: ExecutionState, bindings: Iterable[Binding]) -> bool:
    for binding in bindings:
        name = binding.reference.step_id
        if name in (ITEM, ITEM_INDEX) and name not in execution.steps and binding.reference.call is None:
            continue
        if name in execution.steps and execution.steps[name].status != "completed":
            return False
        if name not in execution.steps and name != INPUTS and binding.reference not in execution.earlier:
            return False
    return True


def update_covered_call(context: ApprovalContext, execution: ExecutionState, covered: ev.CoveredCall) -> CoveredRow:
    """Return the covered call with the present digest of its tool, and the call's risk: dangerous if the tool is gone.

    No rule lowers the risk of a tool that changed since its call was covered, or since the plan was accepted.
    """
    definition = context.tools.get(covered.tool_name)
    if definition is None:
        return covered, "dangerous"
    has_changed = definition.digest != covered.definition_digest or has_changed_since_plan(execution, definition)
    requirement = context.find_requirement(definition, covered.arguments, is_full=has_changed)
    return replace(covered, definition_digest=definition.digest), requirement.effective_risk
