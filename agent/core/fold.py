"""How the log becomes the state: `apply` one event, `fold` many.

`apply` is pure and total over the tables of `planwarden.agent.core.state`. Each event type has at most one function
below that returns the fields it changes; an event without one changes only the status.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core import events as ev
from planwarden.agent.core.frontier import build_order, find_frontier, move_frontier
from planwarden.agent.core.pins import map_pins
from planwarden.agent.core.plan import PlanStep
from planwarden.agent.core.state import (
    CALL_TRANSITIONS,
    STEP_TRANSITIONS,
    TRANSITIONS,
    Call,
    CallStatus,
    EndorsementState,
    ExecutionState,
    ModelTurn,
    StepState,
    SuspensionState,
    TokenUsage,
)


def fold(execution: ExecutionState, recorded: Iterable[ev.Recorded]) -> ExecutionState:
    """`apply` over several recorded events, oldest first."""
    for entry in recorded:
        execution = apply(execution, entry.event, entry.at)
    return execution


def apply(execution: ExecutionState, event: ev.Event, at: float) -> ExecutionState:
    """The execution after `event`, which happened at `at` (Unix seconds).

    Raises:
        IllegalTransition: the event cannot follow; nothing has changed.
    """
    kind = type(event)
    status = TRANSITIONS[execution.status].get(kind)
    if status is None:
        raise IllegalTransition(
            f"{kind.__name__} cannot follow: execution {execution.execution_id!r} is {execution.status}"
        )
    effect = _EFFECTS.get(kind)
    changes = effect(execution, event, at) if effect is not None else {}
    if execution.status == "running" and at > execution.updated_at:
        changes["active_s"] = execution.active_s + (at - execution.updated_at)
    return replace(execution, status=status, version=execution.version + 1, updated_at=at, **changes)


# Each function returns the fields of the execution that an event changes, or raises IllegalTransition.
Changes = dict[str, Any]


def _apply_created(execution: ExecutionState, event: ev.ExecutionCreated, at: float) -> Changes:
    return {
        "goal": event.goal,
        "options": event.options,
        "plan_only": event.plan_only,
        "context": event.context,
        "chain": event.chain,
        "created_at": at,
        "traceparent": event.traceparent,
        "tracestate": event.tracestate,
        "host": event.host,
        **_add_client(execution, event.client_id),
    }


def _apply_started(execution: ExecutionState, event: ev.ExecutionStarted, at: float) -> Changes:
    options = event.options or execution.options
    return {"plan_only": False, "options": options, "exhausted": None, **_add_client(execution, event.client_id)}


def _add_client(execution: ExecutionState, client_id: str | None) -> Changes:
    return {} if client_id is None else {"client_ids": execution.client_ids | {client_id}}


def _apply_plan_accepted(execution: ExecutionState, event: ev.PlanAccepted, at: float) -> Changes:
    if execution.plan is not None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has a plan already")
    steps = {step.step_id: StepState(step=step, calls=_make_planned_calls(step)) for step in event.plan.steps}
    warnings = execution.warnings + event.warnings
    return {
        "plan": event.plan,
        "warnings": warnings,
        "pins": map_pins(event.plan, event.pins),
        "earlier": {result.reference: result for result in event.earlier},
        **_put_all_steps(steps),
    }


def _make_planned_calls(step: PlanStep) -> tuple[Call, ...]:
    return tuple(
        Call(
            call_id=f"{step.step_id}:{number}",
            step_id=step.step_id,
            tool_name=planned.tool_name,
            proposed=planned.arguments,
            by_model=False,
        )
        for number, planned in enumerate(step.tool_calls, 1)
    )


def _apply_plan_refused(execution: ExecutionState, event: ev.PlanRefused, at: float) -> Changes:
    if execution.plan is not None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has a plan already")
    return {"refusals": (*execution.refusals, event.message)}


def _apply_plan_revised(execution: ExecutionState, event: ev.PlanRevised, at: float) -> Changes:
    steps: dict[str, StepState] = {}
    for step in event.plan.steps:
        known = execution.steps.get(step.step_id)
        if known is not None and known.step == step:
            steps[step.step_id] = known
        elif known is None or known.status == "pending":
            steps[step.step_id] = StepState(step=step, calls=_make_planned_calls(step))
        else:
            raise IllegalTransition(f"step {step.step_id!r} has begun and cannot be revised")
    lost = [name for name, state in execution.steps.items() if name not in steps and state.status != "pending"]
    if lost or execution.plan is None:
        raise IllegalTransition(f"a revision cannot remove {', '.join(map(repr, lost)) or 'a plan that is not there'}")
    # A pin of the accepted plan stays: a revision must not renew what a person relied on.
    pins = {**map_pins(event.plan, event.pins), **{name: pin for name, pin in execution.pins.items() if pin}}
    earlier = {**{result.reference: result for result in event.earlier}, **execution.earlier}
    changes: Changes = {"plan": event.plan, "pins": pins, "earlier": earlier, "revisions": execution.revisions[1:]}
    return {**changes, **_put_all_steps(steps)}


def _put_all_steps(steps: Mapping[str, StepState]) -> Changes:
    return {"steps": steps, "order": build_order(steps), "frontier": find_frontier(steps)}


def _apply_revision_refused(execution: ExecutionState, event: ev.RevisionRefused, at: float) -> Changes:
    state = execution.steps.get(event.step_id)
    if state is None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has no step {event.step_id!r}")
    noted = replace(state, notes=(*state.notes, event.message))
    return {"steps": _replace_step(execution, noted), "revisions": execution.revisions[1:]}


def _apply_model_replied(execution: ExecutionState, event: ev.ModelReplied, at: float) -> Changes:
    usage = _add_tokens(execution.usage, event)
    changes: Changes = {"usage": replace(usage, model_calls=usage.model_calls + 1)}
    if event.source is not None:
        changes["sources"] = execution.sources | {event.source}
    if event.revise is not None and event.step_id is not None:
        changes["revisions"] = (*execution.revisions, (event.step_id, event.revise))
    if event.purpose == "synthesize":
        changes["synthesis"] = event.content or ""
    elif event.purpose == "step":
        state = _move_step(execution, event.step_id or "", event)
        first = len(state.calls) + 1
        calls = tuple(
            Call(
                call_id=f"{state.step.step_id}:{number}",
                step_id=state.step.step_id,
                tool_name=proposed.tool_name,
                proposed=proposed.arguments,
                by_model=True,
            )
            for number, proposed in enumerate(event.calls, first)
        )
        turn = ModelTurn(content=event.content, call_ids=tuple(c.call_id for c in calls), enforced=state.enforcing)
        state = replace(state, calls=state.calls + calls, turns=(*state.turns, turn), enforcing=False)
        changes["steps"] = _replace_step(execution, state)
    return changes


def _apply_model_failed(execution: ExecutionState, event: ev.ModelFailed, at: float) -> Changes:
    changes: Changes = {"usage": _add_tokens(execution.usage, event)}
    if event.purpose != "step":
        return {**changes, "model_error": (event.code, event.message)}
    state = replace(
        _move_step(execution, event.step_id or "", event), error_code=event.code, error_message=event.message
    )
    return {**changes, "steps": _replace_step(execution, state)}


def _add_tokens(usage: TokenUsage, event: ev.ModelReplied | ev.ModelFailed) -> TokenUsage:
    return replace(
        usage,
        input_tokens=usage.input_tokens + event.input_tokens,
        output_tokens=usage.output_tokens + event.output_tokens,
    )


def _apply_call_intended(execution: ExecutionState, event: ev.ToolCallIntended, at: float) -> Changes:
    call = execution.call(event.call_id)
    arguments = event.arguments
    if arguments is None:
        suspension = execution.suspensions.get(event.suspension_id or "")
        if suspension is None or suspension.question.call_id != event.call_id:
            raise IllegalTransition(f"call {event.call_id!r} was intended without arguments")
        arguments = suspension.question.arguments
    steps = _move_call(
        execution,
        call,
        event,
        arguments=arguments,
        effect=event.effect,
        suspension_id=event.suspension_id or call.suspension_id,
        consumed=call.consumed if event.suspension_id is None else (*call.consumed, event.suspension_id),
        attempts=call.attempts + 1,
        intended_at=at,
        grant_id=event.grant_id,
        late_report=None,
    )
    asked = execution.suspensions.get(event.suspension_id or "")
    is_same = asked is not None and (asked.question.asker or asked.question.kind == "wait")
    if is_same and call.status == "decided":
        # The same call continues: its server or agent has the answer, or it looks again at what it waits for.
        return {"steps": steps}
    return {"steps": steps, "usage": replace(execution.usage, tool_calls=execution.usage.tool_calls + 1)}


def _apply_tool_returned(execution: ExecutionState, event: ev.ToolReturned, at: float) -> Changes:
    call = execution.call(event.call_id)
    changes: Changes = {"value": event.value, "artifact": event.artifact, "beside": event.beside}
    return {"steps": _move_call(execution, call, event, **changes)}


def _apply_tool_failed(execution: ExecutionState, event: ev.ToolFailed, at: float) -> Changes:
    call = execution.call(event.call_id)
    return {"steps": _move_call(execution, call, event, error_code=event.code, error_message=event.message)}


def _apply_outcome_unknown(execution: ExecutionState, event: ev.ToolOutcomeUnknown, at: float) -> Changes:
    call = execution.call(event.call_id)
    return {"steps": _move_call(execution, call, event, error_code="outcome_unknown", error_message=event.message)}


def _apply_reported_late(execution: ExecutionState, event: ev.CallReportedLate, at: float) -> Changes:
    call = execution.call(event.call_id)
    state = execution.steps[call.step_id]
    calls = tuple(replace(call, late_report=event.message) if other is call else other for other in state.calls)
    return {"steps": _replace_step(execution, replace(state, calls=calls))}


def _apply_suspended(execution: ExecutionState, event: ev.Suspended, at: float) -> Changes:
    question = event.question
    if question.suspension_id in execution.suspensions:
        raise IllegalTransition(f"suspension {question.suspension_id!r} exists already")
    changes: Changes = {}
    if question.call_id is not None:
        call = execution.call(question.call_id)
        arguments = call.arguments if question.arguments is None else question.arguments
        changes["steps"] = _move_call(execution, call, event, arguments=arguments, suspension_id=question.suspension_id)
    elif question.step_id is not None:
        changes["steps"] = _replace_step(execution, _move_step(execution, question.step_id, event))
    opened = SuspensionState(question=question, created_at=at, asked_at=(at,))
    return {**changes, "suspensions": {**execution.suspensions, question.suspension_id: opened}}


def _apply_suspension_revised(execution: ExecutionState, event: ev.SuspensionRevised, at: float) -> Changes:
    current = _find_open(execution, event.question.suspension_id)
    if event.question.revision != current.question.revision + 1 or event.question.call_id != current.question.call_id:
        raise IllegalTransition(f"revision {event.question.revision} does not follow {current.question.revision}")
    changes = _move_step_and_call(execution, event, event.question)
    if event.question.call_id is not None:
        call = execution.call(event.question.call_id)
        changes = {"steps": _move_call(execution, call, event, arguments=event.question.arguments)}
    # The people who approved the earlier revision have not seen this one.
    revised = replace(current, question=event.question, endorsements=(), asked_at=(*current.asked_at, at))
    return {**changes, "suspensions": {**execution.suspensions, event.question.suspension_id: revised}}


def _apply_decided(execution: ExecutionState, event: ev.SuspensionDecided, at: float) -> Changes:
    current = _find_open(execution, event.suspension_id)
    answered = replace(
        current,
        status="decided",
        decision=event.decision,
        assurance=event.assurance,
        channel=event.channel,
        principal=event.principal,
        decided_at=at,
        decided_digest=event.digest,
    )
    return {
        **_move_step_and_call(execution, event, current.question),
        "suspensions": {**execution.suspensions, event.suspension_id: answered},
    }


def _apply_endorsed(execution: ExecutionState, event: ev.SuspensionEndorsed, at: float) -> Changes:
    current = _find_open(execution, event.suspension_id)
    endorsement = EndorsementState(
        principal=event.principal, assurance=event.assurance, channel=event.channel, at=at, content=event.content
    )
    if any(replace(earlier, at=at) == endorsement for earlier in current.endorsements):
        raise IllegalTransition(f"{event.principal!r} has approved suspension {event.suspension_id!r} before")
    # Somebody who answers differently now takes the earlier answer back.
    others = (earlier for earlier in current.endorsements if earlier.principal != event.principal)
    endorsed = replace(current, endorsements=(*others, endorsement))
    return {
        **_move_step_and_call(execution, event, current.question),
        "suspensions": {**execution.suspensions, event.suspension_id: endorsed},
    }


def _apply_reminded(execution: ExecutionState, event: ev.SuspensionReminded, at: float) -> Changes:
    current = _find_open(execution, event.suspension_id)
    if not current.alarmed < event.number <= len(current.question.alarms):
        raise IllegalTransition(f"suspension {event.suspension_id!r} has no alarm {event.number} that is still to come")
    reminded = replace(current, alarmed=event.number)
    return {
        **_move_step_and_call(execution, event, current.question),
        "suspensions": {**execution.suspensions, event.suspension_id: reminded},
    }


def _apply_timed_out(execution: ExecutionState, event: ev.SuspensionTimedOut, at: float) -> Changes:
    current = _find_open(execution, event.suspension_id)
    answered = replace(
        current,
        status="timed_out",
        decision=ev.RecordedDecision(approved=event.outcome == "approve", reason="nobody answered in time"),
        assurance="timeout",
        decided_at=at,
    )
    return {
        **_move_step_and_call(execution, event, current.question),
        "suspensions": {**execution.suspensions, event.suspension_id: answered},
    }


def _apply_suspension_withdrawn(execution: ExecutionState, event: ev.SuspensionWithdrawn, at: float) -> Changes:
    current = _find_open(execution, event.suspension_id)
    if not current.question.asker:
        raise IllegalTransition(
            f"suspension {event.suspension_id!r} was asked by planwarden itself and cannot be withdrawn"
        )
    decision = ev.RecordedDecision(approved=False, reason=event.reason)
    withdrawn = replace(
        current, status="withdrawn", decision=decision, decided_at=at, decided_digest=current.question.digest
    )
    return {
        **_move_step_and_call(execution, event, current.question),
        "suspensions": {**execution.suspensions, event.suspension_id: withdrawn},
    }


def _move_step_and_call(execution: ExecutionState, event: ev.Event, question: ev.Question) -> Changes:
    """The step and the call of a question after an event about it."""
    if question.call_id is not None:
        return {"steps": _move_call(execution, execution.call(question.call_id), event)}
    if question.step_id is not None:
        return {"steps": _replace_step(execution, _move_step(execution, question.step_id, event))}
    return {}


def _apply_validation_failed(execution: ExecutionState, event: ev.ValidationFailed, at: float) -> Changes:
    state = _move_step(execution, event.step_id, event)
    retries = state.retries + 1 if event.enforced else state.retries
    warned = state.warned or not event.enforced
    changed = replace(state, retries=retries, enforcing=event.enforced, warned=warned)
    return {"steps": _replace_step(execution, changed)}


def _apply_step_started(execution: ExecutionState, event: ev.StepStarted, at: float) -> Changes:
    changes: Changes = {"steps": _replace_step(execution, _move_step(execution, event.step_id, event))}
    if event.step_id not in execution.frontier:
        changes["frontier"] = find_frontier(changes["steps"])
    return changes


def _apply_step_skipped(execution: ExecutionState, event: ev.StepSkipped, at: float) -> Changes:
    return _end_step(execution, _move_step(execution, event.step_id, event))


def _end_step(execution: ExecutionState, state: StepState) -> Changes:
    return {"steps": _replace_step(execution, state), "frontier": move_frontier(execution, state.step.step_id)}


def _apply_step_completed(execution: ExecutionState, event: ev.StepCompleted, at: float) -> Changes:
    return _end_step(execution, _move_step(execution, event.step_id, event, validation=event.validation))


def _apply_step_failed(execution: ExecutionState, event: ev.StepFailed, at: float) -> Changes:
    state = _move_step(execution, event.step_id, event)
    failed = replace(state, validation="failed", error_code=event.code, error_message=event.message)
    return _end_step(execution, failed)


def _apply_step_rejected(execution: ExecutionState, event: ev.StepRejected, at: float) -> Changes:
    state = _move_step(execution, event.step_id, event)
    calls = tuple(
        replace(call, status=_next_call_status(call, event)) if call.suspension_id == event.suspension_id else call
        for call in state.calls
    )
    rejected = replace(
        state,
        calls=calls,
        rejected_by=event.suspension_id,
        error_code="rejected",
        error_message=event.reason,
    )
    changes = _end_step(execution, rejected)
    if state.step.on_reject == "stop":
        places = execution.order.places
        changes["stopped_by"] = min(execution.stopped_by or event.step_id, event.step_id, key=places.__getitem__)
    return changes


def _apply_cancel_requested(execution: ExecutionState, event: ev.CancelRequested, at: float) -> Changes:
    return {"cancel_requested": True, "cancel_reason": event.reason}


def _apply_execution_failed(execution: ExecutionState, event: ev.ExecutionFailed, at: float) -> Changes:
    return {"error_code": event.code, "error_message": event.message, **_withdraw_open(execution, at)}


def _apply_exhausted(execution: ExecutionState, event: ev.ExecutionExhausted, at: float) -> Changes:
    if execution.open_suspensions:
        raise IllegalTransition(f"execution {execution.execution_id!r} has open questions and may continue")
    return {"exhausted": event.budget}


def _apply_finished(execution: ExecutionState, event: ev.Event, at: float) -> Changes:
    return _withdraw_open(execution, at)


def _withdraw_open(execution: ExecutionState, at: float) -> Changes:
    if not execution.open_suspensions:
        return {}
    return {
        "suspensions": {
            suspension_id: replace(found, status="withdrawn", decided_at=at) if found.is_open else found
            for suspension_id, found in execution.suspensions.items()
        }
    }


_EFFECTS: dict[type[ev.Event], Callable[[ExecutionState, Any, float], Changes]] = {
    ev.ExecutionCreated: _apply_created,
    ev.ExecutionStarted: _apply_started,
    ev.PlanAccepted: _apply_plan_accepted,
    ev.PlanRefused: _apply_plan_refused,
    ev.PlanRevised: _apply_plan_revised,
    ev.RevisionRefused: _apply_revision_refused,
    ev.ModelReplied: _apply_model_replied,
    ev.ModelFailed: _apply_model_failed,
    ev.ToolCallIntended: _apply_call_intended,
    ev.ToolReturned: _apply_tool_returned,
    ev.ToolFailed: _apply_tool_failed,
    ev.ToolOutcomeUnknown: _apply_outcome_unknown,
    ev.CallReportedLate: _apply_reported_late,
    ev.Suspended: _apply_suspended,
    ev.SuspensionRevised: _apply_suspension_revised,
    ev.SuspensionDecided: _apply_decided,
    ev.SuspensionEndorsed: _apply_endorsed,
    ev.SuspensionReminded: _apply_reminded,
    ev.SuspensionTimedOut: _apply_timed_out,
    ev.SuspensionWithdrawn: _apply_suspension_withdrawn,
    ev.ValidationFailed: _apply_validation_failed,
    ev.StepStarted: _apply_step_started,
    ev.StepSkipped: _apply_step_skipped,
    ev.StepCompleted: _apply_step_completed,
    ev.StepFailed: _apply_step_failed,
    ev.StepRejected: _apply_step_rejected,
    ev.CancelRequested: _apply_cancel_requested,
    ev.ExecutionCompleted: _apply_finished,
    ev.ExecutionRejected: _apply_finished,
    ev.ExecutionFailed: _apply_execution_failed,
    ev.ExecutionExhausted: _apply_exhausted,
    ev.ExecutionCancelled: _apply_finished,
}


def _find_open(execution: ExecutionState, suspension_id: str) -> SuspensionState:
    found = execution.suspensions.get(suspension_id)
    if found is None or not found.is_open:
        raise IllegalTransition(f"suspension {suspension_id!r} is not open")
    return found


def _move_step(execution: ExecutionState, step_id: str, event: ev.Event, **changes: Any) -> StepState:
    """The step after `event` moved it and changed some of its fields."""
    state = execution.steps.get(step_id)
    if state is None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has no step {step_id!r}")
    status = STEP_TRANSITIONS[state.status].get(type(event))
    if status is None:
        raise IllegalTransition(f"{type(event).__name__} cannot follow: step {step_id!r} is {state.status}")
    return state if status == state.status and not changes else replace(state, status=status, **changes)


def _next_call_status(call: Call, event: ev.Event) -> CallStatus:
    status = CALL_TRANSITIONS[call.status].get(type(event))
    if status is None:
        raise IllegalTransition(f"{type(event).__name__} cannot follow: call {call.call_id!r} is {call.status}")
    return status


def _replace_step(execution: ExecutionState, state: StepState) -> Mapping[str, StepState]:
    return {**execution.steps, state.step.step_id: state}


def _move_call(execution: ExecutionState, call: Call, event: ev.Event, **changes: Any) -> Mapping[str, StepState]:
    """The steps after `event` moved `call` and its step, and changed some fields of the call."""
    moved = replace(call, status=_next_call_status(call, event), **changes)
    calls = tuple([moved if other is call else other for other in execution.steps[call.step_id].calls])
    return _replace_step(execution, _move_step(execution, call.step_id, event, calls=calls))
