"""How a step with conditions or a loop begins: it is skipped, fails, or starts with its items.

A condition holds when its value is there and fits its schema. A value that is too large for its schema fails the step,
because nobody knows whether it fits.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.schema import TOO_MUCH_WORK, Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.bindings import WHEN, find_bindings
from planwarden.agent.core.pointers import ArtifactPart, PartAddress, find_list_fault
from planwarden.agent.core.references import AbsentValue, BindingSources, find_values, list_sources, resolve
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.step_control import Condition, Loop


def begin_step(
    execution: ExecutionState, step_id: str, parts: Mapping[PartAddress, ArtifactPart]
) -> tuple[ev.Event, ...]:
    """Returns the events with which the step begins or is skipped.

    Raises:
        PartsNeeded: parts of artifacts have to be read first.
    """
    step = execution.steps[step_id].step
    sources = replace(list_sources(execution, parts), takes_lists=True)
    started = ev.StepStarted(step_id=step_id)
    try:
        for condition in step.when:
            if not _holds(condition, sources):
                return (ev.StepSkipped(step_id=step_id, because=WHEN),)
        if step.loop is None:
            return (started,)
        return (started, ev.LoopBegan(step_id=step_id, items=tuple(find_items(step.loop, execution, parts))))
    except (InvalidArguments, LimitExceeded) as error:
        return (started, ev.StepFailed(step_id=step_id, code=error.code, message=error.message))


def _holds(condition: Condition, sources: BindingSources) -> bool:
    try:
        value = _find_bound(condition.value, sources)
    except AbsentValue:
        return False
    faults = Schema(condition.matches).find_faults(value)
    if TOO_MUCH_WORK in faults:
        raise LimitExceeded("a condition could not be judged: the value is too large for its schema")
    return not faults


def _find_bound(written: dict[str, JsonValue], sources: BindingSources) -> JsonValue:
    """Return what the binding takes, or its default. Raises as `resolve` does."""
    [binding] = find_bindings(written)
    values = find_values([binding], sources)
    return values[binding.reference] if binding.reference in values else written["default"]


def find_items(loop: Loop, execution: ExecutionState, parts: Mapping[PartAddress, ArtifactPart]) -> list[JsonValue]:
    """Return the items of the loop.

    Raises:
        InvalidArguments, LimitExceeded: they are not there, not a list, or too many.
        PartsNeeded: parts of artifacts have to be read first.
    """
    sources = replace(list_sources(execution, parts), takes_lists=True)
    written = loop.items
    items = _find_bound(written, sources) if isinstance(written, dict) else resolve({"": written}, sources)[""]
    if not isinstance(items, list):
        raise InvalidArguments(f"'forEach' leads to {type(items).__name__}, which is no list")
    if len(items) > loop.max_items:
        raise LimitExceeded(
            f"'forEach' has {len(items)} items, the step allows {loop.max_items}; raise 'maxItems' or take fewer"
        )
    if (fault := find_list_fault(items)) is not None:
        raise LimitExceeded(f"'forEach' {fault}")
    return items
