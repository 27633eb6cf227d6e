"""What follows for a call that has no outcome yet, and how a step ends without success."""

from planwarden.agent.core import events as ev
from planwarden.agent.core.actions import Action, DispatchCall, RecordEvent
from planwarden.agent.core.state import Call, ExecutionState


def decide_call(execution: ExecutionState, call: Call) -> Action | None:
    """Dispatch the first call that has no outcome yet, act on its rejection, or wait."""
    if call.status == "running":
        return None
    if call.status in ("decided", "outcome_unknown") and call.suspension_id is not None:
        suspension = execution.suspensions[call.suspension_id]
        decision = suspension.decision
        if decision is not None and not decision.approved and not suspension.question.asker:
            if suspension.question.kind == "reconcile":
                message = f"call {call.call_id!r} was given up: nobody could say whether it happened"
                return fail_step(call.step_id, code="outcome_unknown", message=message)
            return reject_step(call.step_id, suspension.question.suspension_id, decision)
    return DispatchCall(call)


def fail_step(step_id: str, *, code: str, message: str) -> RecordEvent:
    return RecordEvent(ev.StepFailed(step_id=step_id, code=code, message=message))


def reject_step(step_id: str, suspension_id: str, decision: ev.RecordedDecision) -> RecordEvent:
    return RecordEvent(ev.StepRejected(step_id=step_id, suspension_id=suspension_id, reason=decision.reason))
