"""What a step with a loop does next: the calls of several items at the same time, and the end of the step.

Items begin in order, at most `max_concurrent` at a time. The calls are made in waves: a call that uses the result of
another call for the same item waits until that other call is over for every item. No call begins while a question about
many of them is open. The step ends only when none of its calls runs or waits. `decide_call` is for calls of any step.
"""

from collections.abc import Iterator

from planwarden.agent.core.control.actions import Action, DispatchCall, Order
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, SuspensionState


def decide_items(execution: ExecutionState, state: StepState) -> list[Action]:
    """Return the actions that are possible now in a step whose items are known; none while the step has to wait."""
    current = _list_current(state)
    is_asked = has_open_batch(execution, state.step.step_id)
    waiting = [call for call in current if call.status in ("running", "suspended") or _is_asked_about(execution, call)]
    free = [call for call in current if call not in waiting and not (is_asked and call.status == "proposed")]
    actions = [action for call in free if (action := decide_call(execution, call)) is not None]
    ends = [action for action in actions if not isinstance(action, Order)]
    ends.extend(_find_rejections(execution, state))
    if not ends and current:
        return actions
    return [] if waiting or is_asked else [ends[0] if ends else _end(execution, state)]


def decide_call(execution: ExecutionState, call: Call) -> Action | None:
    """Return the action that dispatches the call, or the event that ends its step after a rejection; None to wait."""
    if call.status == "running":
        return None
    if call.status in ("decided", "outcome_unknown") and call.suspension_id is not None:
        suspension = execution.suspensions[call.suspension_id]
        decision = suspension.decision
        if decision is not None and not decision.approved and not suspension.question.asker:
            if suspension.question.kind == "reconcile":
                message = f"call {call.call_id!r} was given up: nobody could say whether it happened"
                return ev.StepFailed(step_id=call.step_id, code="outcome_unknown", message=message)
            return build_rejection(call.step_id, suspension)
    return DispatchCall(call)


def build_rejection(step_id: str, suspension: SuspensionState) -> ev.StepRejected:
    """Return the event that rejects a step because of the answer to a question about it."""
    reason = None if suspension.decision is None else suspension.decision.reason
    return ev.StepRejected(step_id=step_id, suspension_id=suspension.question.suspension_id, reason=reason)


def has_open_batch(execution: ExecutionState, step_id: str) -> bool:
    """Return whether a question about many calls of the step is open."""
    return any(
        suspension.is_open and suspension.question.step_id == step_id
        for suspension in execution.find_suspensions("batch")
    )


def _is_asked_about(execution: ExecutionState, call: Call) -> bool:
    """Return whether a question about the call is open, such as the one about an unknown outcome."""
    suspension = execution.suspensions.get(call.suspension_id or "")
    return suspension is not None and suspension.is_open


def _list_current(state: StepState) -> list[Call]:
    """Return the next call in this wave for each item that has begun, and for as many others as may begin."""
    loop, items = state.step.loop, state.items
    assert loop is not None and items is not None
    is_stopping = state.failed_items > 0 and loop.on_item_failure == "stop"
    calls: list[Call] = []
    for index in range(state.finished_items, len(items)):
        call = state.find_next_call(index)
        if call is None:
            continue
        # Items begin in order: if one has not begun, none after it has.
        if len(calls) >= loop.max_concurrent or (
            is_stopping and not state.has_begun_item(state.list_item_calls(index))
        ):
            break
        calls.append(call)
    return calls


def _find_rejections(execution: ExecutionState, state: StepState) -> Iterator[ev.StepRejected]:
    """Yield a rejection of the step for each rejected question about many of its calls."""
    for suspension in execution.find_suspensions("batch"):
        decision = suspension.decision
        if suspension.question.step_id == state.step.step_id and decision and not decision.approved:
            yield build_rejection(state.step.step_id, suspension)


def _end(execution: ExecutionState, state: StepState) -> Action:
    """Return the event that ends the step. It is not a rejection, because an approval covers at least one row."""
    step, items = state.step, state.items or ()
    if not items:
        return ev.StepCompleted(step_id=step.step_id, validation="skipped")
    if any(call.status == "rehearsed" for call in state.calls):
        return ev.StepRehearsed(step_id=step.step_id)
    if state.failed_items and step.tool_validation_mode == "advisory":
        return ev.StepCompleted(step_id=step.step_id, validation="failed")
    if state.failed_items:
        failed = next(call for call in state.calls if call.status == "failed")
        message = (
            f"{state.failed_items} of {len(items)} items failed; index {failed.index // len(step.tool_calls)}: "
            f"{failed.tool_name} failed: {failed.error_message}"
        )
        return ev.StepFailed(step_id=step.step_id, code=failed.error_code or "tool_error", message=message)
    return ev.StepCompleted(step_id=step.step_id, validation="passed")
