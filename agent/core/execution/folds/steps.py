"""What events about a step change: it begins, its loop does, and it ends in one of its ways."""

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.binding.bindings import WHEN
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.plans import begin_loop
from planwarden.agent.core.execution.folds.transitions import (
    FieldChanges,
    check_is_reviewed,
    find_step,
    move_step,
    next_call_status,
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
    """Return the call after its step was rejected by the question about it, or by the one in which it is a row."""
    if call.status == "proposed" and row is not None:
        call = replace(call, suspension_id=event.suspension_id, arguments=row.arguments)
    if call.suspension_id != event.suspension_id or call.status in CALL_SETTLED:
        return call
    return replace(call, status=next_call_status(call, event))


def apply_skipped(execution: ExecutionState, event: ev.StepSkipped, at: float) -> FieldChanges:
    state, cause = find_step(execution, event.step_id), execution.steps.get(event.because)
    is_passed_over = cause.is_passed_over if cause is not None else event.because == WHEN
    why = {"skipped_by": event.because, "error_message": event.reason or None}
    return move_step(execution, event, state, is_passed_over=is_passed_over, **why)


def apply_rehearsed(execution: ExecutionState, event: ev.StepRehearsed, at: float) -> FieldChanges:
    state = find_step(execution, event.step_id)
    if not _has_rehearsed_call(state):
        raise IllegalTransition(f"step {event.step_id!r} has no call that was only rehearsed")
    return move_step(execution, event, state)


def _has_rehearsed_call(state: StepState) -> bool:
    return any(call.status == "rehearsed" for call in state.calls)
