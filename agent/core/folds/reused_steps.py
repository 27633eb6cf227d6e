"""What `StepsTakenOver` changes: steps and calls that an earlier execution of the thread made already."""

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core import events as ev
from planwarden.agent.core.folds.planned_calls import begin_loop, take_over_call
from planwarden.agent.core.folds.plans import put_all_steps
from planwarden.agent.core.folds.transitions import FieldChanges
from planwarden.agent.core.state import ExecutionState, ModelTurn, StepState
from planwarden.agent.core.verify import find_missing_tools


def apply_taken_over(execution: ExecutionState, event: ev.StepsTakenOver, at: float) -> FieldChanges:
    if execution.plan is None or any(state.has_begun for state in execution.steps.values()):
        raise IllegalTransition(f"execution {execution.execution_id!r} has no plan, or has begun it")
    steps = dict(execution.steps)
    for taken in event.steps:
        state = steps.get(taken.step_id)
        if state is None or state.has_begun:
            raise IllegalTransition(f"step {taken.step_id!r} is not in the plan, or was taken over before")
        steps[taken.step_id] = _take_over_step(state, taken)
    return {"again": event.again, "rejected_before": frozenset(event.rejected), **put_all_steps(steps)}


def _take_over_step(state: StepState, taken: ev.TakenStep) -> StepState:
    if state.step.loop is not None:
        return _take_over_loop(state, taken)
    calls = {} if taken.is_completed else {call.call_id: call for call in state.calls}
    for call in taken.calls:
        planned = calls.get(call.call_id)
        if planned is not None and (planned.tool_name != call.tool_name or call.by_model):
            raise IllegalTransition(f"call {call.call_id!r} is another one in the plan")
        calls[call.call_id] = take_over_call(state.step.step_id, call)
    changed = replace(state, calls=tuple(calls.values()))
    if not taken.is_completed:
        return changed
    if state.step.tool_validation_mode == "strict" and find_missing_tools(changed):
        raise IllegalTransition(f"step {taken.step_id!r} is not proven by execution {taken.execution_id!r}")
    turns = () if taken.text is None else (ModelTurn(content=taken.text, call_ids=(), enforced=False),)
    return replace(changed, status="completed", turns=turns, validation=taken.validation, taken_from=taken.execution_id)


def _take_over_loop(state: StepState, taken: ev.TakenStep) -> StepState:
    """A loop that did not complete keeps its calls until its items are known again."""
    if not taken.is_completed:
        return replace(state, kept=taken)
    began = begin_loop(replace(state, kept=taken), taken.items or ())
    # A call that has no result belongs to an item that a person left out, or that failed in an advisory step.
    calls = tuple(call if call.origin else replace(call, status="rejected") for call in began.calls)
    return replace(
        began,
        calls=calls,
        items_over=len(began.items or ()),
        status="completed",
        validation=taken.validation,
        taken_from=taken.execution_id,
    )
