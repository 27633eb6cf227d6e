"""Apply the events of a step and its calls: the step and its loop begin, calls get results, the step ends."""

from bisect import bisect_left

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import WHEN
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.plans import begin_loop
from planwarden.agent.core.execution.folds.transitions import (
    FieldChanges,
    check_is_rehearsal,
    check_is_reviewed,
    find_step,
    move_call,
    move_step,
    next_call_status,
    put_step,
    replace_at,
)
from planwarden.agent.core.execution.state import CALL_SETTLED, Call, ExecutionState, StepState


def apply_started(execution: ExecutionState, event: ev.StepStarted, at: float) -> FieldChanges:
    check_is_reviewed(execution, event)
    return move_step(execution, event, find_step(execution, event.step_id))


def apply_loop_began(execution: ExecutionState, event: ev.LoopBegan, at: float) -> FieldChanges:
    state = find_step(execution, event.step_id)
    if state.step.loop is None or state.items is not None or state.calls:
        raise IllegalTransition(f"step {event.step_id!r} has no loop that could begin")
    return move_step(execution, event, begin_loop(state, event.items))


def apply_validation_failed(execution: ExecutionState, event: ev.ValidationFailed, at: float) -> FieldChanges:
    state = find_step(execution, event.step_id)
    retries = state.retries + 1 if event.enforced else state.retries
    warned = state.warned or not event.enforced
    return move_step(execution, event, state, retries=retries, enforcing=event.enforced, warned=warned)


def apply_completed(execution: ExecutionState, event: ev.StepCompleted, at: float) -> FieldChanges:
    state = find_step(execution, event.step_id)
    if execution.options.rehearse and _has_rehearsed_call(state):
        raise IllegalTransition(f"step {event.step_id!r} is not completed: a call of it was only rehearsed")
    return move_step(execution, event, state, validation=event.validation)


def apply_failed(execution: ExecutionState, event: ev.StepFailed, at: float) -> FieldChanges:
    state, fault = find_step(execution, event.step_id), {"error_code": event.code, "error_message": event.message}
    return move_step(execution, event, state, validation="failed", **fault)


def apply_rejected(execution: ExecutionState, event: ev.StepRejected, at: float) -> FieldChanges:
    state = find_step(execution, event.step_id)
    suspension = execution.suspensions.get(event.suspension_id)
    rows = {} if suspension is None else {row.call_id: row for row in suspension.question.rows}
    calls = tuple(_reject_call(call, event, rows.get(call.call_id)) for call in state.calls)
    rejected = replace(state, rejected_by=event.suspension_id, error_code="rejected", error_message=event.reason)
    changes = move_step(execution, event, rejected, calls=calls)
    if state.step.on_reject == "stop":
        changes["stopped_by"] = next(name for name in execution.steps if name in (execution.stopped_by, event.step_id))
    return changes


def _reject_call(call: Call, event: ev.StepRejected, row: ev.CoveredCall | None) -> Call:
    """Return the call after its step was rejected: changed only if the question was about it or had a row for it."""
    if call.status == "proposed" and row is not None:
        call = replace(call, suspension_id=event.suspension_id, arguments=row.arguments)
    if call.suspension_id != event.suspension_id or call.status in CALL_SETTLED:
        return call
    return replace(call, status=next_call_status(call, event))


def apply_skipped(execution: ExecutionState, event: ev.StepSkipped, at: float) -> FieldChanges:
    state, cause = find_step(execution, event.step_id), execution.steps.get(event.because)
    condition_failed = cause.condition_failed if cause is not None else event.because == WHEN
    why = {"skipped_by": event.because, "error_message": event.reason or None}
    return move_step(execution, event, state, condition_failed=condition_failed, **why)


def apply_rehearsed(execution: ExecutionState, event: ev.StepRehearsed, at: float) -> FieldChanges:
    state = find_step(execution, event.step_id)
    if not _has_rehearsed_call(state):
        raise IllegalTransition(f"step {event.step_id!r} has no call that was only rehearsed")
    return move_step(execution, event, state)


def _has_rehearsed_call(state: StepState) -> bool:
    return any(call.status == "rehearsed" for call in state.calls)


def apply_intended(execution: ExecutionState, event: ev.ToolCallIntended, at: float) -> FieldChanges:
    call = execution.call(event.call_id)
    check_is_reviewed(execution, event)
    if execution.options.rehearse and event.effect != "read":
        raise IllegalTransition(f"call {event.call_id!r} does more than read, and a rehearsal only reads")
    suspension = execution.suspensions.get(event.suspension_id or "")
    arguments = event.arguments
    if arguments is None:
        if suspension is None or suspension.question.call_id != event.call_id:
            raise IllegalTransition(f"call {event.call_id!r} was intended without arguments")
        arguments = suspension.question.arguments
    changes = move_call(
        execution,
        event,
        event.call_id,
        arguments=arguments,
        effect=event.effect,
        suspension_id=event.suspension_id or call.suspension_id,
        consumed=call.consumed if event.suspension_id is None else (*call.consumed, event.suspension_id),
        attempts=call.attempts + 1,
        intended_at=at,
        grant_id=event.grant_id,
        rule=event.rule,
        once=event.once or call.once,
        shares=event.shares or call.shares,
        late_report=None,
        last_failure=None,
    )
    is_continued = suspension is not None and (suspension.question.asker or suspension.question.kind == "wait")
    if not (is_continued and call.status == "decided"):
        # A call that continues after an answer to its server or agent, or after its tool's wait, is not counted again.
        changes["usage"] = replace(execution.usage, tool_calls=execution.usage.tool_calls + 1)
    return changes


def apply_returned(execution: ExecutionState, event: ev.ToolReturned, at: float) -> FieldChanges:
    return move_call(execution, event, event.call_id, value=event.value, artifact=event.artifact, beside=event.beside)


def apply_call_failed(execution: ExecutionState, event: ev.ToolFailed, at: float) -> FieldChanges:
    call = execution.call(event.call_id)
    if call.status == "outcome_unknown" and not _did_not_happen(execution, call):
        raise IllegalTransition(f"nobody said that call {event.call_id!r} did not happen")
    fault = {"error_code": event.code, "error_message": event.message}
    more: FieldChanges = {"rule": event.rule or call.rule, "beside": event.beside}
    return move_call(execution, event, event.call_id, **fault, **more, nothing_happened=event.nothing_happened)


def _did_not_happen(execution: ExecutionState, call: Call) -> bool:
    """Return whether a person said that the call did not happen."""
    suspension = execution.suspensions.get(call.suspension_id or "")
    decision = suspension.decision if suspension is not None and suspension.question.kind == "reconcile" else None
    content = decision.content if decision is not None else None
    return isinstance(content, dict) and content.get("happened") is False


def apply_attempt_failed(execution: ExecutionState, event: ev.CallAttemptFailed, at: float) -> FieldChanges:
    return move_call(execution, event, event.call_id, last_failure=event.message)


def apply_call_rejected(execution: ExecutionState, event: ev.CallRejected, at: float) -> FieldChanges:
    call = execution.call(event.call_id)
    arguments = call.arguments if call.arguments is not None else _find_row_arguments(execution, event)
    return move_call(execution, event, event.call_id, suspension_id=event.suspension_id, arguments=arguments)


def _find_row_arguments(execution: ExecutionState, event: ev.CallRejected) -> dict[str, JsonValue] | None:
    """Return the arguments in the row that the person left out, or None; rows are in the order of their calls."""
    suspension = execution.suspensions.get(event.suspension_id)
    rows = suspension.question.covers if suspension is not None else ()
    index = bisect_left(rows, _find_number(event.call_id), key=lambda row: _find_number(row.call_id))
    row = rows[index] if index < len(rows) else None
    return row.arguments if row is not None and row.call_id == event.call_id else None


def _find_number(call_id: str) -> int:
    number = call_id.rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def apply_outcome_unknown(execution: ExecutionState, event: ev.ToolOutcomeUnknown, at: float) -> FieldChanges:
    fault = {"error_code": "outcome_unknown", "error_message": event.message}
    return move_call(execution, event, event.call_id, **fault)


def apply_reported_late(execution: ExecutionState, event: ev.CallReportedLate, at: float) -> FieldChanges:
    call = execution.call(event.call_id)
    state = execution.steps[call.step_id]
    calls = replace_at(state.calls, call.index, replace(call, late_report=event.message))
    return put_step(execution, replace(state, calls=calls))


def apply_call_rehearsed(execution: ExecutionState, event: ev.CallRehearsed, at: float) -> FieldChanges:
    check_is_rehearsal(execution, event, is_rehearsal=True)
    return move_call(execution, event, event.call_id, arguments=event.arguments, rehearsed=event)
