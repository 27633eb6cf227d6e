"""Apply events about a question to the suspension, and to the step and the call that the question is about."""

from typing import Any

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.common.struct import copy_fields
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.transitions import (
    FieldChanges,
    check_is_rehearsal,
    find_step,
    move_call,
    move_step,
)
from planwarden.agent.core.execution.state import EndorsementState, ExecutionState, ModelOutage, SuspensionState


def apply_asked(execution: ExecutionState, event: ev.Suspended, at: float) -> FieldChanges:
    question = event.question
    if question.addressee == "human":
        # A rehearsal may wait for the next attempt of a read, but it asks no person.
        check_is_rehearsal(execution, event, is_rehearsal=False)
    if question.suspension_id in execution.suspensions:
        raise IllegalTransition(f"suspension {question.suspension_id!r} exists already")
    opened = SuspensionState(question=question, created_at=at)
    if question.call_id is not None:
        call = execution.call(question.call_id)
        arguments = call.arguments if question.arguments is None else question.arguments
        return _record(execution, event, opened, arguments=arguments, suspension_id=question.suspension_id)
    if question.kind != "wait":
        return _record(execution, event, opened)
    if question.step_id is None:
        return {**_record(execution, event, opened), "outage": _begin_wait(execution.outage, question)}
    outage = _begin_wait(find_step(execution, question.step_id).outage, question)
    return _record(execution, event, opened, outage=outage)


def apply_revised(execution: ExecutionState, event: ev.SuspensionRevised, at: float) -> FieldChanges:
    question, current = event.question, _find_open(execution, event.question.suspension_id)
    if question.revision != current.question.revision + 1 or question.call_id != current.question.call_id:
        raise IllegalTransition(f"revision {question.revision} does not follow {current.question.revision}")
    first = current.first or current.question
    # The people who approved the earlier revision have not seen this one.
    revised = replace(current, question=question, first=first, endorsements=())
    arguments = {} if question.call_id is None else {"arguments": question.arguments}
    return _record(execution, event, revised, **arguments)


def apply_decided(execution: ExecutionState, event: ev.SuspensionDecided, at: float) -> FieldChanges:
    current, decision, claim = _find_open(execution, event.suspension_id), event.decision, ""
    if event.assurance == "claimed" and not decision.approved:
        # A decision's reason is shown as a person's, so a reason that only a model claims is kept apart.
        decision, claim = replace(decision, reason=None), decision.reason or ""
    answered = replace(
        current,
        status="decided",
        decision=decision,
        assurance=event.assurance,
        channel=event.channel,
        principal=event.principal,
        claim=claim,
        decided_at=at,
        decided_digest=event.digest,
    )
    is_approval = current.question.kind == "review" and decision.approved
    reviewed: FieldChanges = {"is_reviewed": True, "agreed_plan": execution.plan} if is_approval else {}
    return {**reviewed, **_record(execution, event, answered)}


def apply_endorsed(execution: ExecutionState, event: ev.SuspensionEndorsed, at: float) -> FieldChanges:
    current = _find_open(execution, event.suspension_id)
    endorsement = copy_fields(EndorsementState, event, at=at)
    if any(replace(earlier, at=at) == endorsement for earlier in current.endorsements):
        raise IllegalTransition(f"{event.principal!r} has approved suspension {event.suspension_id!r} before")
    # If the same principal answers differently now, that replaces the earlier answer.
    others = (earlier for earlier in current.endorsements if earlier.principal != event.principal)
    return _record(execution, event, replace(current, endorsements=(*others, endorsement)))


def apply_reminded(execution: ExecutionState, event: ev.SuspensionReminded, at: float) -> FieldChanges:
    current = _find_open(execution, event.suspension_id)
    if not current.alarmed < event.number <= len(current.question.alarms):
        raise IllegalTransition(f"suspension {event.suspension_id!r} has no alarm {event.number} that is still to come")
    return _record(execution, event, replace(current, alarmed=event.number))


def apply_timed_out(execution: ExecutionState, event: ev.SuspensionTimedOut, at: float) -> FieldChanges:
    current = _find_open(execution, event.suspension_id)
    answered = replace(
        current,
        status="timed_out",
        decision=ev.RecordedDecision(approved=event.outcome == "approve", reason="nobody answered in time"),
        assurance="timeout",
        decided_at=at,
    )
    return _record(execution, event, answered)


def apply_withdrawn(execution: ExecutionState, event: ev.SuspensionWithdrawn, at: float) -> FieldChanges:
    current = _find_open(execution, event.suspension_id)
    if not current.question.asker:
        raise IllegalTransition(
            f"suspension {event.suspension_id!r} was asked by planwarden itself and cannot be withdrawn"
        )
    decision = ev.RecordedDecision(approved=False, reason=event.reason)
    withdrawn = replace(
        current, status="withdrawn", decision=decision, decided_at=at, decided_digest=current.question.digest
    )
    return _record(execution, event, withdrawn)


def _record(execution: ExecutionState, event: ev.Event, changed: SuspensionState, **fields: Any) -> FieldChanges:
    """Return the changed suspension, and its call, or else its step, which the event moves and which gets `fields`."""
    question = changed.question
    changes: FieldChanges = {"suspensions": {**execution.suspensions, question.suspension_id: changed}}
    if question.call_id is not None:
        changes |= move_call(execution, event, question.call_id, **fields)
    elif question.step_id is not None:
        changes |= move_step(execution, event, find_step(execution, question.step_id), **fields)
    return changes


def _find_open(execution: ExecutionState, suspension_id: str) -> SuspensionState:
    suspension = execution.suspensions.get(suspension_id)
    if suspension is None or not suspension.is_open:
        raise IllegalTransition(f"suspension {suspension_id!r} is not open")
    return suspension


def _begin_wait(outage: ModelOutage | None, question: ev.Question) -> ModelOutage:
    if outage is None or outage.suspension_id is not None:
        raise IllegalTransition(f"suspension {question.suspension_id!r} waits for a provider that has not failed")
    return replace(outage, suspension_id=question.suspension_id)
