"""What events about a step change: it begins, its loop does, and it ends in one of its ways."""

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.binding.bindings import WHEN
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.planned_calls import begin_loop
from planwarden.agent.core.execution.folds.transitions import (
    FieldChanges,
    check_is_reviewed,
    end_step,
    find_frontier,
    find_step,
    move_step,
    next_call_status,
    next_step_status,
    replace_step,
)
from planwarden.agent.core.execution.state import CALL_SETTLED, Call, ExecutionState, StepState


def apply_started(execution: ExecutionState, event: ev.StepStarted, at: float) -> FieldChanges:
    check_is_reviewed(execution, event)
    changes: FieldChanges = {"steps": replace_step(execution, move_step(execution, event.step_id, event))}
    if event.step_id not in execution.frontier:
        changes["frontier"] = find_frontier(changes["steps"])
    return changes


def apply_loop_began(execution: ExecutionState, event: ev.LoopBegan, at: float) -> FieldChanges:
    state = move_step(execution, event.step_id, event)
    if state.step.loop is None or state.items is not None or state.calls:
        raise IllegalTransition(f"step {event.step_id!r} has no loop that could begin")
    return {"steps": replace_step(execution, begin_loop(state, event.items))}


def apply_validation_failed(execution: ExecutionState, event: ev.ValidationFailed, at: float) -> FieldChanges:
    state = move_step(execution, event.step_id, event)
    retries = state.retries + 1 if event.enforced else state.retries
    warned = state.warned or not event.enforced
    changed = replace(state, retries=retries, enforcing=event.enforced, warned=warned)
    return {"steps": replace_step(execution, changed)}


def apply_completed(execution: ExecutionState, event: ev.StepCompleted, at: float) -> FieldChanges:
    state = find_step(execution, event.step_id)
    completed = replace(state, status=next_step_status(state, event), validation=event.validation)
    if execution.options.rehearse and _has_rehearsed_call(state):
        raise IllegalTransition(f"step {event.step_id!r} is not completed: a call of it was only rehearsed")
    return end_step(execution, completed)


def apply_failed(execution: ExecutionState, event: ev.StepFailed, at: float) -> FieldChanges:
    state = move_step(execution, event.step_id, event)
    failed = replace(state, validation="failed", error_code=event.code, error_message=event.message)
    return end_step(execution, failed)


def apply_rejected(execution: ExecutionState, event: ev.StepRejected, at: float) -> FieldChanges:
    state = move_step(execution, event.step_id, event)
    suspension = execution.suspensions.get(event.suspension_id)
    rows = {} if suspension is None else {row.call_id: row for row in suspension.question.rows}
    calls = tuple(_reject_call(call, event, rows.get(call.call_id)) for call in state.calls)
    rejected = replace(
        state,
        calls=calls,
        rejected_by=event.suspension_id,
        error_code="rejected",
        error_message=event.reason,
    )
    changes = end_step(execution, rejected)
    if state.step.on_reject == "stop":
        places = execution.order.places
        changes["stopped_by"] = min(execution.stopped_by or event.step_id, event.step_id, key=places.__getitem__)
    return changes


def _reject_call(call: Call, event: ev.StepRejected, row: ev.CoveredCall | None) -> Call:
    """Return the call after its step was rejected by the question about it, or by the one in which it is a row."""
    if call.status == "proposed" and row is not None:
        call = replace(call, suspension_id=event.suspension_id, arguments=row.arguments)
    if call.suspension_id != event.suspension_id or call.status in CALL_SETTLED:
        return call
    return replace(call, status=next_call_status(call, event))


def apply_skipped(execution: ExecutionState, event: ev.StepSkipped, at: float) -> FieldChanges:
    state = move_step(execution, event.step_id, event)
    cause = execution.steps.get(event.because)
    is_passed_over = cause.is_passed_over if cause is not None else event.because == WHEN
    skipped = replace(
        state, is_passed_over=is_passed_over, skipped_by=event.because, error_message=event.reason or None
    )
    return end_step(execution, skipped)


def apply_rehearsed(execution: ExecutionState, event: ev.StepRehearsed, at: float) -> FieldChanges:
    state = move_step(execution, event.step_id, event)
    if not _has_rehearsed_call(state):
        raise IllegalTransition(f"step {event.step_id!r} has no call that was only rehearsed")
    return end_step(execution, state)


def _has_rehearsed_call(state: StepState) -> bool:
    return any(call.status == "rehearsed" for call in state.calls)
