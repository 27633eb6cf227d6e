"""Move steps and calls through the tables of transitions, for the other modules of this package.

The functions only return the changes, or raise `IllegalTransition`. `LongTuple` makes changes in long loops cheap.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar, cast, overload

from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import (
    CALL_TRANSITIONS,
    STEP_TRANSITIONS,
    Call,
    CallStatus,
    ExecutionState,
    StepState,
)

FieldChanges = dict[str, Any]
"""The fields of an `ExecutionState` that an event changes, with their new values."""

Value = TypeVar("Value")

PART = 128
"""The number of values in one part of a `LongTuple`. With 10,000 values, a change copies about 200 references."""


def find_step(execution: ExecutionState, step_id: str | None) -> StepState:
    """Return the step with that id. Raises `IllegalTransition` if there is none."""
    state = execution.steps.get(step_id or "")
    if state is None:
        raise IllegalTransition(f"execution {execution.execution_id!r} has no step {step_id!r}")
    return state


def put_step(execution: ExecutionState, state: StepState) -> FieldChanges:
    """Return the changes that replace the state of this one step."""
    return {"steps": {**execution.steps, state.step.step_id: state}}


def move_step(execution: ExecutionState, event: ev.Event, state: StepState, **fields: Any) -> FieldChanges:
    """Return the changes by which `event` moves the step to its next status and sets `fields` of the step."""
    status = STEP_TRANSITIONS[state.status].get(type(event))
    if status is None:
        raise IllegalTransition(f"{type(event).__name__} cannot follow: step {state.step.step_id!r} is {state.status}")
    return put_step(execution, replace(state, status=status, **fields))


def next_call_status(call: Call, event: ev.Event) -> CallStatus:
    """Return the status of the call after `event`."""
    status = CALL_TRANSITIONS[call.status].get(type(event))
    if status is None:
        raise IllegalTransition(f"{type(event).__name__} cannot follow: call {call.call_id!r} is {call.status}")
    return status


def move_call(execution: ExecutionState, event: ev.Event, call_id: str, **fields: Any) -> FieldChanges:
    """Return the changes by which `event` moves the call and its step, and sets `fields` of the call."""
    call = execution.call(call_id)
    moved = replace(call, status=next_call_status(call, event), **fields)
    state = execution.steps[call.step_id]
    calls = replace_at(state.calls, call.index, moved)
    if state.items is not None:
        failed_items = state.failed_items + (moved.status == "failed")
        state = pass_over_items(replace(state, calls=calls, failed_items=failed_items))
    return move_step(execution, event, state, calls=calls)


def pass_over_items(state: StepState) -> StepState:
    """Return a loop's step with current `finished_items`; if no item has a call left in a wave, begin the next wave."""
    items, over, last = len(state.items or ()), state.finished_items, len(state.item_order.ends) - 1
    while True:
        while over < items and state.find_next_call(over) is None:
            over += 1
        if over < items or state.wave >= last:
            return state if over == state.finished_items else replace(state, finished_items=over)
        state, over = replace(state, wave=state.wave + 1, finished_items=0), 0


def check_is_reviewed(execution: ExecutionState, event: ev.Event) -> None:
    """Raise `IllegalTransition` if a person still has to approve the plan."""
    if execution.options.review is not None and not execution.is_reviewed:
        name = type(event).__name__
        raise IllegalTransition(f"{name} cannot follow: nobody approved the plan of {execution.execution_id!r} yet")


def check_is_rehearsal(execution: ExecutionState, event: ev.Event, *, is_rehearsal: bool) -> None:
    """Raise `IllegalTransition` unless the execution is a rehearsal or, with `is_rehearsal` False, a real run."""
    if execution.options.rehearse is not is_rehearsal:
        what = "is a rehearsal" if execution.options.rehearse else "is not a rehearsal"
        raise IllegalTransition(f"{type(event).__name__} cannot follow: execution {execution.execution_id!r} {what}")


class LongTuple(Sequence[Value]):
    """An immutable tuple in parts, for the calls of a loop: a copy with one changed value shares all parts but one.

    A loop of 10,000 items changes its calls 20,000 times. Copying all calls at each change would take longer than
    making the calls. A `LongTuple` is compared by value, and only with another `LongTuple`.
    """

    __slots__ = ("parts",)

    parts: tuple[tuple[Value, ...], ...]
    """Each part has `PART` values; the last one may have fewer."""

    def __init__(self, parts: tuple[tuple[Value, ...], ...]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return PART * (len(self.parts) - 1) + len(self.parts[-1]) if self.parts else 0

    def __iter__(self) -> Iterator[Value]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Value, ...]: ...
    def __getitem__(self, index: int | slice) -> Value | tuple[Value, ...]:
        positions = range(len(self))[index]
        if isinstance(positions, range):
            return tuple(self.parts[position // PART][position % PART] for position in positions)
        return self.parts[positions // PART][positions % PART]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LongTuple):
            return NotImplemented
        return self.parts == cast("LongTuple[object]", other).parts


def replace_at(values: Sequence[Value], index: int, value: Value) -> Sequence[Value]:
    """Return the values with `value` at `index`; a tuple of more than `PART` values becomes a `LongTuple`."""
    if isinstance(values, tuple) and len(values) <= PART:
        return (*values[:index], value, *values[index + 1 :])
    if not isinstance(values, LongTuple):
        values = LongTuple(tuple(tuple(values[start : start + PART]) for start in range(0, len(values), PART)))
    number, rest = divmod(index, PART)
    part = values.parts[number]
    changed = (*part[:rest], value, *part[rest + 1 :])
    return LongTuple((*values.parts[:number], changed, *values.parts[number + 1 :]))
