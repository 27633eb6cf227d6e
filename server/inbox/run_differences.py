"""What differs between two runs of a thread: their inputs, and for each step its state, arguments and results."""

from collections.abc import Iterator

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.core.state import ExecutionState, StepState
from planwarden.server.inbox.plan_view import PlanView
from planwarden.server.inbox.value_view import ArgumentChange, find_changes

VALUE_BYTES = 8_000
ALL_BYTES = 1_000_000
"""All compared values of one run together."""
MAX_CALLS = 50
"""Of a step."""
MAX_ROWS = 200


class RunDifferences(msgspec.Struct, frozen=True, kw_only=True):
    """From the first run to the second."""

    inputs: tuple[ArgumentChange, ...]
    steps: tuple[ArgumentChange, ...]
    left_out: int
    """Differences of steps that are not listed."""
    is_partial: bool
    """Something was too large to be compared."""


class _Facts:
    """What is compared of one run, by labels, as far as there is room for it."""

    def __init__(self, execution: ExecutionState, view: PlanView) -> None:
        self.is_partial = False
        self._left = ALL_BYTES
        self.inputs = dict(self._list_inputs(execution))
        states = {line.step_id: line.state for line in view.steps}
        self.steps: dict[str, JsonValue] = {}
        for step_id, found in execution.steps.items():
            self.steps[f"{step_id}: state"] = states.get(step_id, found.status)
            self.steps.update(self._list_calls(step_id, found))

    def _list_inputs(self, execution: ExecutionState) -> Iterator[tuple[str, JsonValue]]:
        for name, value in execution.inputs.items():
            if self._has_room(value):
                yield name, value

    def _list_calls(self, step_id: str, found: StepState) -> Iterator[tuple[str, JsonValue]]:
        self.is_partial |= len(found.calls) > MAX_CALLS
        for number, call in enumerate(found.calls[:MAX_CALLS]):
            which = f" {number}" if len(found.calls) > 1 else ""
            if call.arguments is not None and self._has_room(call.arguments):
                yield f"{step_id}: arguments{which}", call.arguments
            if call.status == "succeeded" and self._has_room(call.value):
                yield f"{step_id}: result{which}", call.value

    def _has_room(self, value: JsonValue) -> bool:
        limit = min(VALUE_BYTES, self._left)
        size = measure_at_least(value, limit)
        if size > limit:
            self.is_partial = True
            return False
        self._left -= size
        return True


def list_differences(
    before: ExecutionState, after: ExecutionState, first: PlanView, second: PlanView
) -> RunDifferences:
    """Returns what differs; `first` and `second` are the views of the two runs."""
    was, becomes = _Facts(before, first), _Facts(after, second)
    steps = find_changes(was.steps, becomes.steps)
    return RunDifferences(
        inputs=find_changes(was.inputs, becomes.inputs),
        steps=steps[:MAX_ROWS],
        left_out=max(0, len(steps) - MAX_ROWS),
        is_partial=was.is_partial or becomes.is_partial,
    )
