"""What an execution's own events change: those of its start, its end, its stops and its models' replies."""

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.plans import build_step_call
from planwarden.agent.core.execution.folds.transitions import FieldChanges, check_is_rehearsal, find_step, move_step
from planwarden.agent.core.execution.state import ExecutionState, ModelOutage, ModelTurn, Usage


def apply_created(execution: ExecutionState, event: ev.ExecutionCreated, at: float) -> FieldChanges:
    facts = {name: getattr(event, name) for name in ev.CreationFacts.__struct_fields__}
    return {**facts, "created_at": at, **_add_client(execution, event.client_id)}


def apply_started(execution: ExecutionState, event: ev.ExecutionStarted, at: float) -> FieldChanges:
    options = event.options or execution.options
    has_begun = execution.status == "incomplete" or any(s.status != "pending" for s in execution.steps.values())
    if has_begun and options.rehearse != execution.options.rehearse:
        raise IllegalTransition(f"execution {execution.execution_id!r} has begun: 'rehearse' can no longer change")
    if has_begun and event.inputs is not None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has begun: its inputs can no longer change")
    changes: FieldChanges = {
        "options": options,
        "inputs": execution.inputs if event.inputs is None else event.inputs,
        # Without a plan, the execution still stops as soon as it has one, because nobody has seen that plan.
        "plan_only": execution.plan_only and execution.plan is None,
        "exhausted": None,
        "outage": None,
        **_add_client(execution, event.client_id),
    }
    if any(state.outage is not None for state in execution.steps.values()):
        changes["steps"] = {name: replace(state, outage=None) for name, state in execution.steps.items()}
    return changes


def _add_client(execution: ExecutionState, client_id: str | None) -> FieldChanges:
    return {} if client_id is None else {"client_ids": execution.client_ids | {client_id}}


def apply_cancel_requested(execution: ExecutionState, event: ev.CancelRequested, at: float) -> FieldChanges:
    return {"cancel_requested": True, "cancel_reason": event.reason}


def apply_exhausted(execution: ExecutionState, event: ev.ExecutionExhausted, at: float) -> FieldChanges:
    if execution.open_suspensions:
        raise IllegalTransition(f"execution {execution.execution_id!r} has open questions and may continue")
    return {"exhausted": event.budget}


def apply_ended(execution: ExecutionState, event: ev.Event, at: float) -> FieldChanges:
    """Return the changes: the error of a failed execution, and the withdrawal of all questions that are still open."""
    if isinstance(event, ev.ExecutionCompleted | ev.ExecutionRehearsed):
        check_is_rehearsal(execution, event, is_rehearsal=isinstance(event, ev.ExecutionRehearsed))
    changes: FieldChanges = {}
    if isinstance(event, ev.ExecutionFailed):
        changes |= {"error_code": event.code, "error_message": event.message}
    if execution.open_suspensions:
        changes["suspensions"] = {
            suspension_id: replace(suspension, status="withdrawn", decided_at=at) if suspension.is_open else suspension
            for suspension_id, suspension in execution.suspensions.items()
        }
    return changes


def apply_replied(execution: ExecutionState, event: ev.ModelReplied, at: float) -> FieldChanges:
    usage = _add_tokens(execution.usage, event)
    changes: FieldChanges = {"usage": replace(usage, model_calls=usage.model_calls + 1)}
    if event.source is not None:
        changes["sources"] = execution.sources | {event.source}
    if event.revise is not None and event.step_id is not None:
        changes["revisions"] = (*execution.revisions, (event.step_id, event.revise))
    if event.purpose != "step":
        changes["outage"] = None
    if event.purpose == "synthesize":
        changes["synthesis"] = event.content or ""
    elif event.purpose == "step":
        state = find_step(execution, event.step_id)
        if event.calls and state.step.loop is not None and state.items is None:
            raise IllegalTransition(f"step {event.step_id!r} gets its calls from its loop, which has not begun")
        step, first = state.step, len(state.calls) + 1
        calls = [
            build_step_call(step, n, call.tool_name, call.arguments, by_model=True)
            for n, call in enumerate(event.calls, first)
        ]
        turn = ModelTurn(content=event.content, call_ids=tuple(c.call_id for c in calls), enforced=state.enforcing)
        turns = {"calls": (*state.calls, *calls), "turns": (*state.turns, turn)}
        changes |= move_step(execution, event, state, **turns, enforcing=False, outage=None)
    return changes


def apply_model_failed(execution: ExecutionState, event: ev.ModelFailed, at: float) -> FieldChanges:
    changes: FieldChanges = {"usage": _add_tokens(execution.usage, event)}
    if event.purpose != "step":
        if event.retryable:
            return {**changes, "outage": _prolong_outage(execution.outage, event, at)}
        return {**changes, "outage": None, "model_error": (event.code, event.message)}
    state = find_step(execution, event.step_id)
    if event.retryable:
        return changes | move_step(execution, event, state, outage=_prolong_outage(state.outage, event, at))
    fault = {"error_code": event.code, "error_message": event.message}
    return changes | move_step(execution, event, state, outage=None, **fault)


def _add_tokens(usage: Usage, event: ev.ModelReplied | ev.ModelFailed) -> Usage:
    return replace(
        usage,
        input_tokens=usage.input_tokens + event.input_tokens,
        output_tokens=usage.output_tokens + event.output_tokens,
    )


def _prolong_outage(outage: ModelOutage | None, event: ev.ModelFailed, at: float) -> ModelOutage:
    attempts, since = (0, at) if outage is None else (outage.attempts, outage.since)
    return ModelOutage(attempts=attempts + 1, since=since, failed_at=at, message=event.message, asked_s=event.asked_s)
