"""What follows in a step with a loop: the calls of several items at the same time, and the end of the step.

Items begin in their order, at most `max_concurrent` at a time. A call that uses the result of another call for the same
item waits until that other call has been made for every item: one wave after another. No call begins while a person is
asked about many of them, and the step ends only when none of its calls is on its way or asked about.
"""

from collections.abc import Sequence

from planwarden.agent.core.control.actions import Action, Order, decide_call, fail_step, reject_step
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState


def decide_items(execution: ExecutionState, state: StepState) -> list[Action]:
    """Return what can be done now in a step whose items are known."""
    current = _list_current(state)
    is_asked = has_open_batch(execution, state.step.step_id)
    waiting = [call for call in current if call.status in ("running", "suspended") or _is_asked_about(execution, call)]
    free = [call for call in current if call not in waiting and not (is_asked and call.status == "proposed")]
    actions = [action for call in free if (action := decide_call(execution, call)) is not None]
    ends = [action for action in actions if not isinstance(action, Order)]
    if rejection := _find_rejection(execution, state):
        ends.append(reject_step(state.step.step_id, *rejection))
    if not ends and current:
        return actions
    return [] if waiting or is_asked else [ends[0] if ends else _end(execution, state)]


def has_open_batch(execution: ExecutionState, step_id: str) -> bool:
    """Return whether a person is asked about many calls of the step."""
    return any(
        suspension.is_open and suspension.question.step_id == step_id
        for suspension in execution.find_suspensions("batch")
    )


def _is_asked_about(execution: ExecutionState, call: Call) -> bool:
    """Return whether a question about the call is open, such as the one about an unknown outcome."""
    suspension = execution.suspensions.get(call.suspension_id or "")
    return suspension is not None and suspension.is_open


def _list_current(state: StepState) -> list[Call]:
    """Return the next call of this wave for each item that has begun, and for as many further ones as may begin."""
    loop, items = state.step.loop, state.items
    assert loop is not None and items is not None
    is_stopping = state.failed_items > 0 and loop.on_item_failure == "stop"
    calls: list[Call] = []
    for index in range(state.items_over, len(items)):
        call = state.find_next_call(index)
        if call is None:
            continue
        # Items begin in order, so after the first that has not begun, none has.
        if len(calls) >= loop.max_concurrent or (
            is_stopping and not state.has_begun_item(state.list_item_calls(index))
        ):
            break
        calls.append(call)
    return calls


def _find_rejection(execution: ExecutionState, state: StepState) -> tuple[str, ev.RecordedDecision] | None:
    """Return the question about the loop's calls to which the answer was no, and that answer."""
    for suspension in execution.find_suspensions("batch"):
        question, decision = suspension.question, suspension.decision
        if question.step_id == state.step.step_id and decision and not decision.approved:
            return question.suspension_id, decision
    return None


def _end(execution: ExecutionState, state: StepState) -> Action:
    """Complete the step if the log proves every item, or fail it."""
    step, items = state.step, state.items or ()
    if not items:
        return ev.StepCompleted(step_id=step.step_id, validation="skipped")
    if any(call.status == "rehearsed" for call in state.calls):
        return ev.StepRehearsed(step_id=step.step_id)
    if state.failed_items and step.tool_validation_mode == "advisory":
        return ev.StepCompleted(step_id=step.step_id, validation="failed")
    if state.failed_items:
        failed = next(call for call in state.calls if call.status == "failed")
        _, index = state.find_item(failed) or (None, 0)
        message = (
            f"{state.failed_items} of {len(items)} items failed; item {index}: {failed.tool_name} failed: "
            f"{failed.error_message}"
        )
        return fail_step(step.step_id, code=failed.error_code or "tool_error", message=message)
    if all(_is_rejected(state.list_item_calls(index)) for index in range(len(items))):
        suspension_id = next(call.suspension_id for call in state.calls if call.status == "rejected") or ""
        return reject_step(step.step_id, suspension_id, ev.RecordedDecision(approved=False))
    return ev.StepCompleted(step_id=step.step_id, validation="passed")


def _is_rejected(calls: Sequence[Call]) -> bool:
    return any(call.status == "rejected" for call in calls)
