"""What differs between two runs of a thread: their inputs, and for each step its state, arguments and results."""

from collections.abc import Iterator

import msgspec
from pydantic import JsonValue

from planwarden.agent.core.state import ExecutionState, StepState
from planwarden.server.inbox.plan_view import PlanView
from planwarden.server.inbox.value_view import ArgumentChange, find_changes
from planwarden.server.views.facts import format_value

VALUE_CHARS = 8_000
"""A larger value is shown cut, with its size and hash."""
MAX_ROWS = 200


class RunDifferences(msgspec.Struct, frozen=True, kw_only=True):
    """From the first run to the second."""

    inputs: tuple[ArgumentChange, ...]
    steps: tuple[ArgumentChange, ...]
    left_out: int
    """Differences of steps that are not listed."""


def list_differences(
    before: ExecutionState, after: ExecutionState, first: PlanView, second: PlanView
) -> RunDifferences:
    """Returns what differs; `first` and `second` are the views of the two runs."""
    steps = find_changes(dict(_list_facts(before, first)), dict(_list_facts(after, second)))
    return RunDifferences(
        inputs=find_changes(_shorten_all(before), _shorten_all(after)),
        steps=steps[:MAX_ROWS],
        left_out=max(0, len(steps) - MAX_ROWS),
    )


def _shorten_all(execution: ExecutionState) -> dict[str, JsonValue]:
    return {name: _shorten(value) for name, value in execution.inputs.items()}


def _list_facts(execution: ExecutionState, view: PlanView) -> Iterator[tuple[str, JsonValue]]:
    """What is compared of each step, by a label."""
    states = {line.step_id: line.state for line in view.steps}
    for step_id, found in execution.steps.items():
        yield f"{step_id}: state", states.get(step_id, found.status)
        yield from _list_calls(step_id, found)


def _list_calls(step_id: str, found: StepState) -> Iterator[tuple[str, JsonValue]]:
    arguments = [call.arguments for call in found.calls if call.arguments is not None]
    results = [call.value for call in found.calls if call.status == "succeeded"]
    for name, values in (("arguments", arguments), ("result", results)):
        if values:
            whole: JsonValue = [_shorten(value) for value in values[:MAX_ROWS]]
            yield f"{step_id}: {name}", _shorten(values[0] if len(values) == 1 else whole)


def _shorten(value: JsonValue) -> JsonValue:
    """The value, or for a large one its short form, which is another one for every other value."""
    return value if len(msgspec.json.encode(value)) <= VALUE_CHARS else format_value(value)
