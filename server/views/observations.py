"""The public view of the log: which events become observations, with their types and data."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec
from pydantic.alias_generators import to_camel

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.views.instants import to_utc

_MAX_TEXT = 2_000
Getter = Callable[[Any], Any]
_ABOUT_A_QUESTION = (
    ev.SuspensionDecided,
    ev.SuspensionEndorsed,
    ev.SuspensionReminded,
    ev.SuspensionTimedOut,
    ev.SuspensionWithdrawn,
)


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of the public history."""

    sequence: int
    """Its place in the log; `observationsAfter` with this number asks for what came later."""
    type: str
    """What kind of fact it is."""
    at: datetime
    """When it was committed."""
    step_id: str | None
    """The step that it is about, or null."""
    data: dict[str, JsonValue]
    """What happened; the keys depend on `type`."""


def build_observations(recorded: Iterable[ev.Recorded], execution: ExecutionState) -> Iterator[Observation]:
    """Yield the observations in order; a failed validation with an enforcement prompt becomes two observations."""
    for entry in recorded:
        event, at = entry.event, to_utc(entry.at)
        if type(event) not in OBSERVED:
            continue
        kind, keys = OBSERVED[type(event)]
        data = {key: _show(part(event) if callable(part) else part) for key, part in keys.items()}
        data |= _describe_rest(event, execution)
        step_id = _find_step_id(event, execution)
        yield Observation(sequence=entry.sequence, type=kind, at=at, step_id=step_id, data=data)
        if isinstance(event, ev.ValidationFailed) and event.enforced:
            yield Observation(sequence=entry.sequence, type="ENFORCEMENT_SENT", at=at, step_id=step_id, data=data)


def _show(value: JsonValue | tuple[JsonValue, ...]) -> JsonValue:
    return value[:_MAX_TEXT] if isinstance(value, str) else list(value) if isinstance(value, tuple) else value


def _describe_rest(event: ev.Event, execution: ExecutionState) -> dict[str, JsonValue]:
    """Return data that only some events of a type have, or that is in the execution's state, not in the event."""
    if isinstance(event, ev.SuspensionTimedOut):
        return {"kind": execution.suspensions[event.suspension_id].question.public_kind}
    if isinstance(event, ev.StepSkipped) and event.reason:
        return {"reason": event.reason}
    if isinstance(event, ev.Suspended | ev.SuspensionRevised) and event.question.edits:
        edit = event.question.edits[-1]
        who: dict[str, JsonValue] = {"assurance": edit.assurance, "channel": edit.channel, "principal": edit.principal}
        return {"edited": list(edit.arguments), **who} if edit.revision == event.question.revision else {}
    return {}


def _find_step_id(event: ev.Event, execution: ExecutionState) -> str | None:
    if isinstance(event, ev.Suspended | ev.SuspensionRevised):
        return event.question.step_id
    if isinstance(event, _ABOUT_A_QUESTION):
        return execution.suspensions[event.suspension_id].question.step_id
    call_id: str = getattr(event, "call_id", "")
    return call_id.rpartition(":")[0] or getattr(event, "step_id", "") or None


def _keys(*names: str, **others: Getter | str | None) -> Mapping[str, Getter | str | None]:
    """Return a mapping from the last part of each name, in camelCase, to its entry in `others`, or else to a getter."""
    return {to_camel(name.rpartition(".")[2]): others.get(name, attrgetter(name)) for name in names}


_FAILURE = ("call_id", "status", "code", "message")
_QUESTION = _keys(
    "question.suspension_id",
    "question.addressee",
    "kind",
    "question.revision",
    "question.tool_name",
    kind=attrgetter("question.public_kind"),
)
OBSERVED: Mapping[type[ev.Event], tuple[str, Mapping[str, Getter | str | None]]] = {
    ev.ToolCallIntended: (
        "TOOL_CALLED",
        _keys("call_id", "effect", "rule", rule=lambda event: None if event.rule is None else event.rule.number),
    ),
    ev.ToolReturned: ("TOOL_RETURNED", _keys("call_id", "status", status="succeeded")),
    ev.ToolFailed: ("TOOL_RETURNED", _keys(*_FAILURE, status="failed")),
    ev.CallAttemptFailed: ("TOOL_RETURNED", _keys(*_FAILURE, status="attempt_failed")),
    ev.CallRejected: ("TOOL_RETURNED", _keys("call_id", "status", "suspension_id", status="rejected")),
    ev.ToolOutcomeUnknown: ("TOOL_RETURNED", _keys(*_FAILURE, status="outcome_unknown", code="outcome_unknown")),
    ev.CallRehearsed: ("TOOL_REHEARSED", _keys("call_id", "asks", "needs")),
    ev.CallReportedLate: ("CALL_REPORTED_LATE", _keys("call_id", "message")),
    ev.StepStarted: ("STEP_STARTED", {}),
    ev.LoopBegan: ("LOOP_BEGAN", {"items": lambda event: len(event.items)}),
    ev.ValidationFailed: ("VALIDATION_FAILED", _keys("missing", "mode")),
    ev.StepCompleted: ("STEP_COMPLETED", {"validationStatus": attrgetter("validation")}),
    ev.StepFailed: ("STEP_FAILED", _keys("code", "message")),
    ev.StepRejected: ("STEP_REJECTED", _keys("suspension_id", "reason")),
    ev.StepRehearsed: ("STEP_REHEARSED", {}),
    ev.StepSkipped: ("STEP_SKIPPED", _keys("because")),
    ev.Suspended: ("AGENT_SUSPENDED", _QUESTION),
    ev.SuspensionRevised: ("AGENT_SUSPENDED", _QUESTION),
    ev.SuspensionDecided: (
        "AGENT_RESUMED",
        _keys("suspension_id", "decision.approved", "assurance", "channel", "principal"),
    ),
    ev.SuspensionEndorsed: (
        "AGENT_SUSPENDED",
        {**_keys("suspension_id"), "endorsedBy": attrgetter("principal"), **_keys("assurance", "channel")},
    ),
    ev.SuspensionReminded: (
        "AGENT_SUSPENDED",
        _keys(
            "suspension_id",
            "reminder",
            reminder=lambda event: {"number": event.number, "kind": event.kind, "to": list(event.to)},
        ),
    ),
    ev.SuspensionTimedOut: ("SUSPENSION_TIMEOUT", _keys("suspension_id", "kind", "outcome", kind=None)),
    ev.SuspensionWithdrawn: ("AGENT_RESUMED", {**_keys("suspension_id"), "withdrawn": attrgetter("reason")}),
    ev.PlanAccepted: ("PLAN_ACCEPTED", _keys("steps", "warnings", steps=lambda event: len(event.plan.steps))),
    ev.StepsTakenOver: (
        "STEPS_TAKEN_OVER",
        {
            "steps": lambda event: [step.step_id for step in event.steps if step.is_completed],
            "calls": lambda event: sum(len(step.calls) for step in event.steps if not step.is_completed),
        },
    ),
    ev.PlanRevised: ("PLAN_REVISED", _keys("added", "changed", "removed", "moved")),
    ev.RevisionRefused: ("VALIDATION_FAILED", _keys("code", "message", code="invalid_plan")),
    ev.PlanRefused: ("VALIDATION_FAILED", _keys("code", "message")),
    ev.ExecutionCompleted: ("EXECUTION_COMPLETED", {}),
    ev.ExecutionRehearsed: ("EXECUTION_REHEARSED", {}),
    ev.ExecutionFailed: ("EXECUTION_FAILED", _keys("code", "message")),
    ev.ExecutionExhausted: ("EXECUTION_FAILED", _keys("code", "budget", code="incomplete")),
    ev.ExecutionRejected: ("EXECUTION_REJECTED", {}),
    ev.ExecutionCancelled: ("EXECUTION_CANCELLED", _keys("reason")),
}
"""Each observed event with the type of its observation, and the value or getter of each key of its data."""
