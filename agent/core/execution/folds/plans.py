"""Apply the events that accept, refuse or revise a plan, or take over steps of earlier executions; build its calls."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import zip_longest

from msgspec.structs import replace

from planwarden.agent.common.canonical import comparable_json, is_same_json
from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.binding.bindings import ITEM_INDEX
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.transitions import FieldChanges, find_step, pass_over_items, put_step
from planwarden.agent.core.execution.state import Call, ExecutionState, ModelTurn, StepState
from planwarden.agent.core.execution.verify import find_missing_tools
from planwarden.agent.core.plan.pins import map_pins
from planwarden.agent.core.plan.plan import PlanStep, find_item_order


def apply_accepted(execution: ExecutionState, event: ev.PlanAccepted, at: float) -> FieldChanges:
    if execution.plan is not None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has a plan already")
    steps = {step.step_id: _new_step_state(step) for step in event.plan.steps}
    return {
        "plan": event.plan,
        "agreed_plan": event.agreed or event.plan,
        "warnings": execution.warnings + event.warnings,
        "pins": map_pins(event.plan, event.pins),
        "earlier": {result.reference: result for result in event.earlier},
        "inputs": event.inputs,
        "is_reviewed": False,
        "steps": _fill_waits_for(steps),
    }


def _new_step_state(step: PlanStep) -> StepState:
    """Return a step that has not begun, with its planned calls; a loop gets its calls only when its items are known."""
    return StepState(step=step, calls=() if step.loop is not None else tuple(build_planned_calls(step)))


def apply_refused(execution: ExecutionState, event: ev.PlanRefused, at: float) -> FieldChanges:
    if execution.plan is not None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has a plan already")
    return {"refusals": (*execution.refusals, event.message)}


def apply_revised(execution: ExecutionState, event: ev.PlanRevised, at: float) -> FieldChanges:
    is_edit = not event.step_id
    if is_edit and not any(review.is_open for review in execution.find_suspensions("review")):
        raise IllegalTransition(f"execution {execution.execution_id!r} has no open review in which its plan is edited")
    if not is_edit and execution.status == "suspended":
        raise IllegalTransition(f"no model revises the plan of {execution.execution_id!r} while it is suspended")
    steps: dict[str, StepState] = {}
    for step in event.plan.steps:
        earlier_state = execution.steps.get(step.step_id)
        if earlier_state is not None and is_same_json(earlier_state.step, step):
            is_author = step.step_id == event.step_id
            steps[step.step_id] = replace(earlier_state, revision_refused=None) if is_author else earlier_state
        elif earlier_state is None or not earlier_state.has_begun:
            steps[step.step_id] = _new_step_state(step)
        else:
            raise IllegalTransition(f"step {step.step_id!r} has begun and cannot be revised")
    lost = [name for name, state in execution.steps.items() if name not in steps and state.has_begun]
    if lost or execution.plan is None:
        raise IllegalTransition(f"a revision cannot remove {', '.join(map(repr, lost)) or 'a plan that is not there'}")
    # Keep the earlier pins: a revision must not replace tool definitions that a person relied on.
    pins = {**map_pins(event.plan, event.pins), **{name: pin for name, pin in execution.pins.items() if pin}}
    earlier = {**{result.reference: result for result in event.earlier}, **execution.earlier}
    return {
        "plan": event.plan,
        "pins": pins,
        "earlier": earlier,
        "is_reviewed": False,
        "is_revised": True,
        "revisions": execution.revisions if is_edit else execution.revisions[1:],
        "steps": _fill_waits_for(steps),
    }


def apply_revision_refused(execution: ExecutionState, event: ev.RevisionRefused, at: float) -> FieldChanges:
    state = find_step(execution, event.step_id)
    turns = tuple(replace(turn, revision_refused=event.asks_again) for turn in state.turns[-1:])
    state = replace(state, revision_refused=event.message, turns=(*state.turns[:-1], *turns))
    return {**put_step(execution, state), "revisions": execution.revisions[1:]}


def _fill_waits_for(steps: Mapping[str, StepState]) -> Mapping[str, StepState]:
    """Return the steps with `waits_for` filled in for each pending step.

    A step may need a step that was taken over, which is complete already. Then it waits for the steps before that one.
    """
    if not any(state.taken_from for state in steps.values()):
        return steps
    open_before: dict[str, dict[str, None]] = {}
    waits: dict[str, StepState] = {}
    needs = {name: [*filter(steps.__contains__, state.step.dependencies)] for name, state in steps.items()}
    for name in TopologicalSorter(needs).static_order():
        state = steps[name]
        through: dict[str, None] = {}
        for dependency in needs[name]:
            through.update(open_before[dependency])
        waits[name] = state if state.status != "pending" else replace(state, waits_for=tuple(through))
        if state.taken_from is not None:
            unfinished = [dependency for dependency in needs[name] if steps[dependency].status != "completed"]
            open_before[name] = {**through, **dict.fromkeys(unfinished)}
        else:
            open_before[name] = {}
    return {name: waits[name] for name in steps}


def apply_taken_over(execution: ExecutionState, event: ev.StepsTakenOver, at: float) -> FieldChanges:
    if execution.plan is None or any(state.has_begun for state in execution.steps.values()):
        raise IllegalTransition(f"execution {execution.execution_id!r} has no plan, or has begun it")
    steps = dict(execution.steps)
    for reused in event.steps:
        state = steps.get(reused.step_id)
        if state is None or state.has_begun:
            raise IllegalTransition(f"step {reused.step_id!r} is not in the plan, or was taken over before")
        steps[reused.step_id] = _take_over_step(state, reused)
    rejected = dict(zip_longest(event.rejected, event.rejecters))
    return {"again": event.again, "rejected_before": rejected, "steps": _fill_waits_for(steps)}


def _take_over_step(state: StepState, reused: ev.TakenStep) -> StepState:
    if state.step.loop is not None:
        return _take_over_loop(state, reused)
    calls = {} if reused.is_completed else {call.call_id: call for call in state.calls}
    for call in reused.calls:
        planned = calls.get(call.call_id)
        if planned is not None and (planned.tool_name != call.tool_name or call.by_model):
            raise IllegalTransition(f"call {call.call_id!r} is different in the plan")
        calls[call.call_id] = take_over_call(state.step.step_id, call)
    changed = replace(state, calls=tuple(calls.values()))
    if not reused.is_completed:
        return changed
    if state.step.tool_validation_mode == "strict" and find_missing_tools(changed):
        raise IllegalTransition(f"step {reused.step_id!r} is not proven by execution {reused.execution_id!r}")
    turns = () if reused.text is None else (ModelTurn(content=reused.text, call_ids=(), enforced=False),)
    return replace(
        changed, status="completed", turns=turns, validation=reused.validation, taken_from=reused.execution_id
    )


def _take_over_loop(state: StepState, reused: ev.TakenStep) -> StepState:
    """Return the loop as completed if it completed before; else keep its earlier calls in `reuse` until it begins."""
    if not reused.is_completed:
        return replace(state, reuse=reused)
    began = begin_loop(replace(state, reuse=reused), reused.items or ())
    # A call without a result was left out by a person, or failed in an advisory step.
    calls = tuple(call if call.origin else replace(call, status="rejected") for call in began.calls)
    return replace(
        began,
        calls=calls,
        finished_items=len(began.items or ()),
        status="completed",
        validation=reused.validation,
        taken_from=reused.execution_id,
    )


def begin_loop(state: StepState, items: tuple[JsonValue, ...]) -> StepState:
    """Return the step with the calls of all items. Where `reuse` has the same call for the same item, take it over."""
    step, size = state.step, len(state.step.tool_calls)
    calls_by_id = {} if state.reuse is None else {call.call_id: call for call in state.reuse.calls}
    earlier = {} if state.reuse is None else _match_earlier_items(step, items, state.reuse)
    calls: list[Call] = []
    for index in range(len(items)):
        for number, planned in enumerate(step.tool_calls, 1):
            new = build_step_call(step, index * size + number, planned.tool_name, planned.arguments)
            reused = calls_by_id.get(f"{step.step_id}:{earlier[index] * size + number}") if index in earlier else None
            request: list[JsonValue] = [planned.tool_name, planned.arguments]
            if reused is not None and is_same_json([reused.tool_name, reused.proposed], request):
                new = replace(take_over_call(step.step_id, reused), call_id=new.call_id)
            calls.append(new)
    order = find_item_order(step.tool_calls)
    return pass_over_items(replace(state, items=items, calls=tuple(calls), reuse=None, item_order=order))


def _match_earlier_items(step: PlanStep, items: Sequence[JsonValue], reuse: ev.TakenStep) -> dict[int, int]:
    """Return, by the index of each item now, the index that the same item had in the earlier loop, if it was there.

    If a call uses the index, both must be the same. Of equal earlier items, use those with most calls first.
    """
    takes_index = any(binding.reference.step_id == ITEM_INDEX for binding in step.list_bindings())

    def name(index: int, item: JsonValue) -> str:
        return comparable_json([item, takes_index and index])

    free: dict[str, deque[int]] = {}
    before, counts = reuse.items or (), Counter(call.index // len(step.tool_calls) for call in reuse.calls)
    for index in sorted(range(len(before)), key=lambda index: -counts[index]):
        free.setdefault(name(index, before[index]), deque()).append(index)
    return {index: same.popleft() for index, item in enumerate(items) if (same := free.get(name(index, item)))}


def build_planned_calls(step: PlanStep) -> list[Call]:
    """Return the calls that the plan lists in the step; for a loop, the calls for its first item."""
    return [
        build_step_call(step, number, call.tool_name, call.arguments) for number, call in enumerate(step.tool_calls, 1)
    ]


def build_step_call(
    step: PlanStep, number: int, tool_name: str, arguments: dict[str, JsonValue], *, by_model: bool = False
) -> Call:
    """Return a proposed call of the step."""
    call_id = f"{step.step_id}:{number}"
    return Call(call_id=call_id, tool_name=tool_name, origin="", proposed=arguments, by_model=by_model)


def take_over_call(step_id: str, reused: ev.TakenCall) -> Call:
    """Return the call as the earlier execution left it.

    Raises:
        IllegalTransition: the call belongs to another step.
    """
    if reused.step_id != step_id:
        raise IllegalTransition(f"call {reused.call_id!r} does not belong to step {step_id!r}")
    if reused.unknown is None:
        return copy_fields(Call, reused, status="succeeded")
    fault = {"error_code": "outcome_unknown", "error_message": reused.unknown}
    return copy_fields(Call, reused, status="outcome_unknown", **fault)
