"""The calls that a step begins with: those of the plan, and those that an earlier execution made already."""

from msgspec.structs import replace

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.transitions import pass_over_items
from planwarden.agent.core.execution.state import Call, StepState
from planwarden.agent.core.plan.item_calls import find_item_order
from planwarden.agent.core.plan.plan import PlannedCall, PlanStep


def make_planned_calls(step: PlanStep) -> tuple[Call, ...]:
    """Return the calls of a step that begins with the plan; those of a loop come with its items."""
    if step.loop is not None:
        return ()
    return tuple([_make_call(step, number, planned) for number, planned in enumerate(step.tool_calls, 1)])


def begin_loop(state: StepState, items: tuple[JsonValue, ...]) -> StepState:
    """Return the step with the calls of all items; those that were made for the same items before are not made
    again."""
    step, size = state.step, len(state.step.tool_calls)
    calls_by_id = {call.call_id: call for call in state.reuse.calls} if state.reuse is not None else {}
    earlier_items = state.reuse.items or () if state.reuse is not None else ()
    calls: list[Call] = []
    for index, item in enumerate(items):
        is_known = index < len(earlier_items) and is_same_json(earlier_items[index], item)
        for number, planned in enumerate(step.tool_calls, index * size + 1):
            reused = calls_by_id.get(f"{step.step_id}:{number}") if is_known else None
            if reused is not None and _is_call_of(reused, planned):
                calls.append(take_over_call(step.step_id, reused))
            else:
                calls.append(_make_call(step, number, planned))
    order = find_item_order(step.tool_calls)
    return pass_over_items(replace(state, items=items, calls=tuple(calls), reuse=None, item_order=order))


def _is_call_of(reused: ev.TakenCall, planned: PlannedCall) -> bool:
    return reused.tool_name == planned.tool_name and is_same_json(reused.proposed, planned.arguments)


def _make_call(step: PlanStep, number: int, planned: PlannedCall) -> Call:
    return Call(
        call_id=f"{step.step_id}:{number}",
        step_id=step.step_id,
        tool_name=planned.tool_name,
        proposed=planned.arguments,
        by_model=False,
    )


def take_over_call(step_id: str, reused: ev.TakenCall) -> Call:
    """Return the call as its execution left it.

    Raises:
        IllegalTransition: it belongs to another step.
    """
    if reused.call_id.rpartition(":")[0] != step_id:
        raise IllegalTransition(f"call {reused.call_id!r} does not belong to step {step_id!r}")
    is_unknown = reused.unknown is not None
    return Call(
        call_id=reused.call_id,
        step_id=step_id,
        tool_name=reused.tool_name,
        proposed=reused.proposed,
        by_model=reused.by_model,
        status="outcome_unknown" if is_unknown else "succeeded",
        arguments=reused.arguments,
        value=reused.value,
        error_code="outcome_unknown" if is_unknown else None,
        error_message=reused.unknown,
        effect=reused.effect,
        artifact=reused.artifact,
        beside=reused.beside,
        origin=reused.origin,
        is_confirmation=reused.is_confirmation,
    )
