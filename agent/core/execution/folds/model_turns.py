"""What replies and failures of a model change: the turns of a step, the usage, the wait for a provider."""

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.transitions import FieldChanges, move_step, replace_step
from planwarden.agent.core.execution.state import Call, ExecutionState, ModelOutage, ModelTurn, TokenUsage


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
        state = move_step(execution, event.step_id or "", event)
        if event.calls and state.step.loop is not None and state.items is None:
            raise IllegalTransition(f"step {event.step_id!r} gets its calls from its loop, which has not begun")
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
        state = replace(state, calls=(*state.calls, *calls), turns=(*state.turns, turn), enforcing=False, outage=None)
        changes["steps"] = replace_step(execution, state)
    return changes


def apply_failed(execution: ExecutionState, event: ev.ModelFailed, at: float) -> FieldChanges:
    changes: FieldChanges = {"usage": _add_tokens(execution.usage, event)}
    if event.purpose != "step":
        if event.retryable:
            return {**changes, "outage": _prolong_outage(execution.outage, event, at)}
        return {**changes, "outage": None, "model_error": (event.code, event.message)}
    state = move_step(execution, event.step_id or "", event)
    if event.retryable:
        state = replace(state, outage=_prolong_outage(state.outage, event, at))
    else:
        state = replace(state, outage=None, error_code=event.code, error_message=event.message)
    return {**changes, "steps": replace_step(execution, state)}


def _add_tokens(usage: TokenUsage, event: ev.ModelReplied | ev.ModelFailed) -> TokenUsage:
    return replace(
        usage,
        input_tokens=usage.input_tokens + event.input_tokens,
        output_tokens=usage.output_tokens + event.output_tokens,
    )


def _prolong_outage(outage: ModelOutage | None, event: ev.ModelFailed, at: float) -> ModelOutage:
    attempts, since = (0, at) if outage is None else (outage.attempts, outage.since)
    return ModelOutage(attempts=attempts + 1, since=since, failed_at=at, message=event.message, asked_s=event.asked_s)
