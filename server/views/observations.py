"""The public view of the log: which event is which observation, and what an observation holds."""

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.views.instants import to_utc

_MAX_TEXT = 2_000
_SUSPENSION_EVENTS = (
    ev.SuspensionDecided,
    ev.SuspensionEndorsed,
    ev.SuspensionReminded,
    ev.SuspensionTimedOut,
    ev.SuspensionWithdrawn,
)


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of the public history."""

    sequence: int
    """Place in the log; `observationsAfter` asks for what came after it."""
    type: str
    """What kind of fact it is."""
    at: datetime
    """When it was committed."""
    step_id: str | None
    """The step that it is about, or null."""
    data: dict[str, JsonValue]
    """What happened, by type."""


def build_observations(recorded: Iterable[ev.Recorded], execution: ExecutionState) -> Iterator[Observation]:
    """Yield the public events in order; a failed validation with an enforcement prompt becomes two."""
    for entry in recorded:
        fact = _observe(entry.event)
        if fact is None:
            continue
        kind, step_id, data = fact
        if isinstance(entry.event, _SUSPENSION_EVENTS):
            question = execution.suspensions[entry.event.suspension_id].question
            step_id = question.step_id
            if isinstance(entry.event, ev.SuspensionTimedOut):
                data = {**data, "kind": question.public_kind}
        at = to_utc(entry.at)
        yield Observation(sequence=entry.sequence, type=kind, at=at, step_id=step_id, data=data)
        if isinstance(entry.event, ev.ValidationFailed) and entry.event.enforced:
            yield Observation(sequence=entry.sequence, type="ENFORCEMENT_SENT", at=at, step_id=step_id, data=data)


ObservedFact = tuple[str, str | None, dict[str, JsonValue]]


def _observe(event: ev.Event) -> ObservedFact | None:
    for observe in (_observe_call, _observe_step, _observe_suspension, _observe_plan, _observe_end):
        fact = observe(event)
        if fact is not None:
            return fact
    return None


def _observe_call(event: ev.Event) -> ObservedFact | None:
    match event:
        case ev.ToolCallIntended():
            rule = None if event.rule is None else event.rule.number
            called: dict[str, JsonValue] = {"callId": event.call_id, "effect": event.effect, "rule": rule}
            return "TOOL_CALLED", _find_step_id(event.call_id), called
        case ev.ToolReturned():
            return "TOOL_RETURNED", _find_step_id(event.call_id), {"callId": event.call_id, "status": "succeeded"}
        case ev.ToolFailed():
            return (
                "TOOL_RETURNED",
                _find_step_id(event.call_id),
                _build_failure(event.call_id, "failed", event.code, event.message),
            )
        case ev.CallAttemptFailed():
            data = _build_failure(event.call_id, "attempt_failed", event.code, event.message)
            return "TOOL_RETURNED", _find_step_id(event.call_id), data
        case ev.CallRejected():
            return (
                "TOOL_RETURNED",
                _find_step_id(event.call_id),
                {"callId": event.call_id, "status": "rejected", "suspensionId": event.suspension_id},
            )
        case ev.ToolOutcomeUnknown():
            data = _build_failure(event.call_id, "outcome_unknown", "outcome_unknown", event.message)
            return "TOOL_RETURNED", _find_step_id(event.call_id), data
        case ev.CallRehearsed():
            return (
                "TOOL_REHEARSED",
                _find_step_id(event.call_id),
                {"callId": event.call_id, "asks": event.asks, "needs": event.needs},
            )
        case ev.CallReportedLate():
            return (
                "CALL_REPORTED_LATE",
                _find_step_id(event.call_id),
                {"callId": event.call_id, "message": event.message[:_MAX_TEXT]},
            )
        case _:
            return None


def _observe_step(event: ev.Event) -> ObservedFact | None:
    match event:
        case ev.StepStarted():
            return "STEP_STARTED", event.step_id, {}
        case ev.LoopBegan():
            return "LOOP_BEGAN", event.step_id, {"items": len(event.items)}
        case ev.ValidationFailed():
            return "VALIDATION_FAILED", event.step_id, {"missing": list(event.missing), "mode": event.mode}
        case ev.StepCompleted():
            return "STEP_COMPLETED", event.step_id, {"validationStatus": event.validation}
        case ev.StepFailed():
            return "STEP_FAILED", event.step_id, {"code": event.code, "message": event.message[:_MAX_TEXT]}
        case ev.StepRejected():
            return "STEP_REJECTED", event.step_id, {"suspensionId": event.suspension_id, "reason": event.reason}
        case ev.StepRehearsed():
            return "STEP_REHEARSED", event.step_id, {}
        case ev.StepSkipped():
            return (
                "STEP_SKIPPED",
                event.step_id,
                {
                    "because": event.because,
                    **({"reason": event.reason} if event.reason else {}),
                },
            )
        case _:
            return None


def _observe_suspension(event: ev.Event) -> ObservedFact | None:
    match event:
        case ev.Suspended(question=question) | ev.SuspensionRevised(question=question):
            data: dict[str, JsonValue] = {
                "suspensionId": question.suspension_id,
                "addressee": question.addressee,
                "kind": question.public_kind,
                "revision": question.revision,
                "toolName": question.tool_name,
            }
            if question.edits and question.edits[-1].revision == question.revision:
                edit = question.edits[-1]
                data["edited"] = list(edit.arguments)
                data |= {"assurance": edit.assurance, "channel": edit.channel, "principal": edit.principal}
            return "AGENT_SUSPENDED", question.step_id, data
        case ev.SuspensionDecided(decision=decision):
            return (
                "AGENT_RESUMED",
                None,
                {
                    "suspensionId": event.suspension_id,
                    "approved": decision.approved,
                    "assurance": event.assurance,
                    "channel": event.channel,
                    "principal": event.principal,
                },
            )
        case ev.SuspensionEndorsed():
            return (
                "AGENT_SUSPENDED",
                None,
                {
                    "suspensionId": event.suspension_id,
                    "endorsedBy": event.principal,
                    "assurance": event.assurance,
                    "channel": event.channel,
                },
            )
        case ev.SuspensionReminded():
            reminder: dict[str, JsonValue] = {"number": event.number, "kind": event.kind, "to": list(event.to)}
            return "AGENT_SUSPENDED", None, {"suspensionId": event.suspension_id, "reminder": reminder}
        case ev.SuspensionTimedOut():
            # Only its question says what kind it was.
            end: dict[str, JsonValue] = {"suspensionId": event.suspension_id, "kind": None, "outcome": event.outcome}
            return "SUSPENSION_TIMEOUT", None, end
        case ev.SuspensionWithdrawn():
            return "AGENT_RESUMED", None, {"suspensionId": event.suspension_id, "withdrawn": event.reason[:_MAX_TEXT]}
        case _:
            return None


def _observe_plan(event: ev.Event) -> ObservedFact | None:
    match event:
        case ev.PlanAccepted():
            return "PLAN_ACCEPTED", None, {"steps": len(event.plan.steps), "warnings": list(event.warnings)}
        case ev.StepsTakenOver():
            reuse: dict[str, JsonValue] = {
                "steps": [step.step_id for step in event.steps if step.is_completed],
                "calls": sum(len(step.calls) for step in event.steps if not step.is_completed),
            }
            return "STEPS_TAKEN_OVER", None, reuse
        case ev.PlanRevised():
            difference: dict[str, JsonValue] = {
                "added": list(event.added),
                "changed": list(event.changed),
                "removed": list(event.removed),
                "moved": list(event.moved),
            }
            return "PLAN_REVISED", event.step_id or None, difference
        case ev.RevisionRefused():
            return "VALIDATION_FAILED", event.step_id, {"code": "invalid_plan", "message": event.message[:_MAX_TEXT]}
        case ev.PlanRefused():
            return "VALIDATION_FAILED", None, {"code": event.code, "message": event.message[:_MAX_TEXT]}
        case _:
            return None


def _observe_end(event: ev.Event) -> ObservedFact | None:
    match event:
        case ev.ExecutionCompleted():
            return "EXECUTION_COMPLETED", None, {}
        case ev.ExecutionRehearsed():
            return "EXECUTION_REHEARSED", None, {}
        case ev.ExecutionFailed():
            return "EXECUTION_FAILED", None, {"code": event.code, "message": event.message[:_MAX_TEXT]}
        case ev.ExecutionExhausted():
            return "EXECUTION_FAILED", None, {"code": "incomplete", "budget": event.budget}
        case ev.ExecutionRejected():
            return "EXECUTION_REJECTED", None, {}
        case ev.ExecutionCancelled():
            return "EXECUTION_CANCELLED", None, {"reason": event.reason}
        case _:
            return None


def _build_failure(call_id: str, status: str, code: str, message: str) -> dict[str, JsonValue]:
    return {"callId": call_id, "status": status, "code": code, "message": message[:_MAX_TEXT]}


def _find_step_id(call_id: str) -> str:
    return call_id.rpartition(":")[0]
