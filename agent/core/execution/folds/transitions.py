"""How an event moves a step or a call through the tables, for the folds of every subject.

A function raises `IllegalTransition` where the event cannot follow, and changes nothing itself.

The frontier has the steps for which something can follow next, so that a long plan is not searched after each event: a
pending step without dependencies, or with one that is over, and every step in progress.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.long_tuple import replace_at
from planwarden.agent.core.execution.state import (
    CALL_TRANSITIONS,
    STEP_TERMINAL,
    STEP_TRANSITIONS,
    Call,
    CallStatus,
    ExecutionState,
    PlanOrder,
    StepState,
    StepStatus,
)

FieldChanges = dict[str, Any]
"""Fields of the execution that an event changes, with their new values."""


def move_step(execution: ExecutionState, step_id: str, event: ev.Event) -> StepState:
    """Return the step after `event` moved it."""
    state = find_step(execution, step_id)
    status = next_step_status(state, event)
    return state if status == state.status else replace(state, status=status)


def find_step(execution: ExecutionState, step_id: str) -> StepState:
    """Return the step with that id."""
    state = execution.steps.get(step_id)
    if state is None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has no step {step_id!r}")
    return state


def next_step_status(state: StepState, event: ev.Event) -> StepStatus:
    """Return the status of the step after `event`."""
    status = STEP_TRANSITIONS[state.status].get(type(event))
    if status is None:
        raise IllegalTransition(f"{type(event).__name__} cannot follow: step {state.step.step_id!r} is {state.status}")
    return status


def replace_step(execution: ExecutionState, state: StepState) -> Mapping[str, StepState]:
    """Return the steps with `state` in the place of its step."""
    return {**execution.steps, state.step.step_id: state}


def end_step(execution: ExecutionState, state: StepState) -> FieldChanges:
    """Return the changes after a step moved to a terminal status: `state` in its place, and what may begin now."""
    return {
        "steps": replace_step(execution, state),
        "frontier": move_frontier(execution, state.step.step_id),
        "steps_over": execution.steps_over + 1,
        "steps_done": execution.steps_done + state.is_done,
    }


def next_call_status(call: Call, event: ev.Event) -> CallStatus:
    """Return the status of the call after `event`."""
    status = CALL_TRANSITIONS[call.status].get(type(event))
    if status is None:
        raise IllegalTransition(f"{type(event).__name__} cannot follow: call {call.call_id!r} is {call.status}")
    return status


def put_call(execution: ExecutionState, moved: Call, event: ev.Event) -> Mapping[str, StepState]:
    """Return the steps after `event` moved a call, whose status is `next_call_status` already, and its step."""
    before = execution.steps[moved.step_id]
    calls = replace_at(before.calls, moved.place, moved)
    state = replace(before, status=next_step_status(before, event), calls=calls)
    return replace_step(execution, state if state.items is None else _count_items(state, moved))


def _count_items(state: StepState, moved: Call) -> StepState:
    """Return the step of a loop after one of its calls moved."""
    return pass_over_items(replace(state, failed_items=state.failed_items + (moved.status == "failed")))


def pass_over_items(state: StepState) -> StepState:
    """Return the step of a loop past the items that are over; after the last one, the next wave has its turn."""
    items, over, last = len(state.items or ()), state.items_over, len(state.item_order.ends) - 1
    while True:
        while over < items and state.find_next_call(over) is None:
            over += 1
        if over < items or state.wave >= last:
            return state if over == state.items_over else replace(state, items_over=over)
        state, over = replace(state, wave=state.wave + 1, items_over=0), 0


def check_is_reviewed(execution: ExecutionState, event: ev.Event) -> None:
    """Raise `IllegalTransition` for an execution whose plan a person has to approve first."""
    if execution.options.review is not None and not execution.is_reviewed:
        name = type(event).__name__
        raise IllegalTransition(f"{name} cannot follow: nobody approved the plan of {execution.execution_id!r} yet")


def check_is_rehearsal(execution: ExecutionState, event: ev.Event, *, is_rehearsal: bool) -> None:
    """Raise `IllegalTransition` unless the execution is a rehearsal, or is none, as `is_rehearsal`."""
    if execution.options.rehearse is not is_rehearsal:
        what = "is a rehearsal" if execution.options.rehearse else "is not a rehearsal"
        raise IllegalTransition(f"{type(event).__name__} cannot follow: execution {execution.execution_id!r} {what}")


def build_order(steps: Mapping[str, StepState]) -> PlanOrder:
    """Return the place of each step in the plan, and which steps depend on it."""
    followers: dict[str, list[str]] = {}
    for name, state in steps.items():
        for dependency in state.needs:
            followers.setdefault(dependency, []).append(name)
    places = {name: place for place, name in enumerate(steps)}
    return PlanOrder(places=places, followers={name: tuple(names) for name, names in followers.items()})


def find_frontier(steps: Mapping[str, StepState]) -> tuple[str, ...]:
    """Return the frontier of a new or revised plan, in plan order."""
    over = {name for name, state in steps.items() if state.status in STEP_TERMINAL}
    return tuple(
        name
        for name, state in steps.items()
        if name not in over and (state.status != "pending" or not (needs := state.needs) or not over.isdisjoint(needs))
    )


def move_frontier(execution: ExecutionState, over: str) -> tuple[str, ...]:
    """Return the frontier after the step `over` has ended, in plan order."""
    order, steps = execution.order, execution.steps
    remaining = [name for name in execution.frontier if name != over]
    present = {*remaining}
    new = [name for name in order.followers.get(over, ()) if name not in present and steps[name].status == "pending"]
    # Each of them is in plan order.
    return tuple(sorted([*remaining, *new], key=order.places.__getitem__)) if remaining and new else (*remaining, *new)
