"""How the log becomes the state: `apply` one event, `fold` many.

`apply` is pure, and the tables of `state` cover every event. An event type has at most one function in `folds`, which
returns the fields that it changes; an event without such a function changes only the status, the version and the times.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds import executions, plans, steps, suspensions
from planwarden.agent.core.execution.folds.transitions import FieldChanges
from planwarden.agent.core.execution.state import TRANSITIONS, ExecutionState

_FOLDS: dict[type[ev.Event], Callable[[ExecutionState, Any, float], FieldChanges]] = {
    ev.ExecutionCreated: executions.apply_created,
    ev.ExecutionStarted: executions.apply_started,
    ev.PlanAccepted: plans.apply_accepted,
    ev.StepsTakenOver: plans.apply_taken_over,
    ev.PlanRefused: plans.apply_refused,
    ev.PlanRevised: plans.apply_revised,
    ev.RevisionRefused: plans.apply_revision_refused,
    ev.ModelReplied: executions.apply_replied,
    ev.ModelFailed: executions.apply_model_failed,
    ev.ToolCallIntended: steps.apply_intended,
    ev.ToolReturned: steps.apply_returned,
    ev.ToolFailed: steps.apply_call_failed,
    ev.CallAttemptFailed: steps.apply_attempt_failed,
    ev.CallRejected: steps.apply_call_rejected,
    ev.ToolOutcomeUnknown: steps.apply_outcome_unknown,
    ev.CallReportedLate: steps.apply_reported_late,
    ev.CallRehearsed: steps.apply_call_rehearsed,
    ev.Suspended: suspensions.apply_asked,
    ev.SuspensionRevised: suspensions.apply_revised,
    ev.SuspensionDecided: suspensions.apply_decided,
    ev.SuspensionEndorsed: suspensions.apply_endorsed,
    ev.SuspensionReminded: suspensions.apply_reminded,
    ev.SuspensionTimedOut: suspensions.apply_timed_out,
    ev.SuspensionWithdrawn: suspensions.apply_withdrawn,
    ev.ValidationFailed: steps.apply_validation_failed,
    ev.StepStarted: steps.apply_started,
    ev.LoopBegan: steps.apply_loop_began,
    ev.StepSkipped: steps.apply_skipped,
    ev.StepRehearsed: steps.apply_rehearsed,
    ev.StepCompleted: steps.apply_completed,
    ev.StepFailed: steps.apply_failed,
    ev.StepRejected: steps.apply_rejected,
    ev.CancelRequested: executions.apply_cancel_requested,
    ev.ExecutionCompleted: executions.apply_ended,
    ev.ExecutionRehearsed: executions.apply_ended,
    ev.ExecutionRejected: executions.apply_ended,
    ev.ExecutionFailed: executions.apply_ended,
    ev.ExecutionExhausted: executions.apply_exhausted,
    ev.ExecutionCancelled: executions.apply_ended,
}


def fold(execution: ExecutionState, recorded: Iterable[ev.Recorded]) -> ExecutionState:
    """Return the execution after several recorded events, oldest first."""
    for entry in recorded:
        execution = apply(execution, entry.event, entry.at)
    return execution


def apply(execution: ExecutionState, event: ev.Event, at: float) -> ExecutionState:
    """Return the execution after `event`, which happened at `at` (Unix seconds).

    Raises:
        IllegalTransition: the event cannot follow; nothing has changed.
    """
    kind = type(event)
    status = TRANSITIONS[execution.status].get(kind)
    if status is None:
        raise IllegalTransition(
            f"{kind.__name__} cannot follow: execution {execution.execution_id!r} is {execution.status}"
        )
    fold_event = _FOLDS.get(kind)
    changes: FieldChanges = fold_event(execution, event, at) if fold_event is not None else {}
    if execution.status == "running" and at > execution.updated_at:
        changes["active_s"] = execution.active_s + (at - execution.updated_at)
    changes["status"] = status
    changes["version"] = execution.version + 1
    changes["updated_at"] = at
    return replace(execution, **changes)
