"""What events about the plan change: it was accepted, refused or revised."""

from collections.abc import Mapping
from graphlib import TopologicalSorter

from msgspec.structs import replace

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.folds.planned_calls import begin_loop, make_planned_calls, take_over_call
from planwarden.agent.core.execution.folds.transitions import (
    FieldChanges,
    build_order,
    find_frontier,
    find_step,
    replace_step,
)
from planwarden.agent.core.execution.state import STEP_TERMINAL, ExecutionState, ModelTurn, StepState
from planwarden.agent.core.execution.verify import find_missing_tools
from planwarden.agent.core.plan.pins import map_pins


def apply_accepted(execution: ExecutionState, event: ev.PlanAccepted, at: float) -> FieldChanges:
    if execution.plan is not None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has a plan already")
    steps = {step.step_id: StepState(step=step, calls=make_planned_calls(step)) for step in event.plan.steps}
    warnings = execution.warnings + event.warnings
    return {
        "plan": event.plan,
        "warnings": warnings,
        "pins": map_pins(event.plan, event.pins),
        "earlier": {result.reference: result for result in event.earlier},
        "inputs": event.inputs,
        "is_reviewed": False,
        **put_all_steps(steps),
    }


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
            steps[step.step_id] = earlier_state
        elif earlier_state is None or not earlier_state.has_begun:
            steps[step.step_id] = StepState(step=step, calls=make_planned_calls(step))
        else:
            raise IllegalTransition(f"step {step.step_id!r} has begun and cannot be revised")
    lost = [name for name, state in execution.steps.items() if name not in steps and state.has_begun]
    if lost or execution.plan is None:
        raise IllegalTransition(f"a revision cannot remove {', '.join(map(repr, lost)) or 'a plan that is not there'}")
    # A pin of the accepted plan stays: a revision must not renew what a person relied on.
    pins = {**map_pins(event.plan, event.pins), **{name: pin for name, pin in execution.pins.items() if pin}}
    earlier = {**{result.reference: result for result in event.earlier}, **execution.earlier}
    changes: FieldChanges = {
        "plan": event.plan,
        "pins": pins,
        "earlier": earlier,
        "is_reviewed": False,
        "is_revised": True,
    }
    if not is_edit:
        changes["revisions"] = execution.revisions[1:]
    return {**changes, **put_all_steps(steps)}


def apply_revision_refused(execution: ExecutionState, event: ev.RevisionRefused, at: float) -> FieldChanges:
    state = find_step(execution, event.step_id)
    noted = replace(state, notes=(*state.notes, event.message))
    return {"steps": replace_step(execution, noted), "revisions": execution.revisions[1:]}


def put_all_steps(steps: Mapping[str, StepState]) -> FieldChanges:
    """Return the changes when `steps` are all steps of the plan from now on."""
    if any(state.taken_from for state in steps.values()):
        steps = _find_waits(steps)
    return {
        "steps": steps,
        "steps_over": sum(state.status in STEP_TERMINAL for state in steps.values()),
        "steps_done": sum(state.is_done for state in steps.values()),
        "order": build_order(steps),
        "frontier": find_frontier(steps),
    }


def _find_waits(steps: Mapping[str, StepState]) -> Mapping[str, StepState]:
    """Return the steps; those that have not begun also wait for the open steps before steps that were taken over."""
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
    return {"again": event.again, "rejected_before": frozenset(event.rejected), **put_all_steps(steps)}


def _take_over_step(state: StepState, reused: ev.TakenStep) -> StepState:
    if state.step.loop is not None:
        return _take_over_loop(state, reused)
    calls = {} if reused.is_completed else {call.call_id: call for call in state.calls}
    for call in reused.calls:
        planned = calls.get(call.call_id)
        if planned is not None and (planned.tool_name != call.tool_name or call.by_model):
            raise IllegalTransition(f"call {call.call_id!r} is another one in the plan")
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
    """A loop that did not complete keeps its calls until its items are known again."""
    if not reused.is_completed:
        return replace(state, reuse=reused)
    began = begin_loop(replace(state, reuse=reused), reused.items or ())
    # A call that has no result belongs to an item that a person left out, or that failed in an advisory step.
    calls = tuple(call if call.origin else replace(call, status="rejected") for call in began.calls)
    return replace(
        began,
        calls=calls,
        items_over=len(began.items or ()),
        status="completed",
        validation=reused.validation,
        taken_from=reused.execution_id,
    )
