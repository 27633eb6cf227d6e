"""How a step with conditions or a loop begins: it is skipped, fails, or starts with its items.

A condition holds when its value is there and fits its schema; the event that skips the step says why one did not. A
value that is too large for its schema fails the step, because nobody knows whether it fits.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.bindings import WHEN, find_bindings
from planwarden.agent.core.conditions import Matcher
from planwarden.agent.core.pointers import ArtifactPart, PartAddress, find_list_fault
from planwarden.agent.core.references import AbsentValue, BindingSources, find_values, list_sources, resolve
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.step_control import Condition, Loop

MAX_REASON_CHARS = 500


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
        for number, condition in enumerate(step.when):
            if (why := _find_mismatch(condition, sources)) is not None:
                which = f"when[{number}]: " if len(step.when) > 1 else ""
                return (ev.StepSkipped(step_id=step_id, because=WHEN, reason=f"{which}{why}"[:MAX_REASON_CHARS]),)
        if step.loop is None:
            return (started,)
        return (started, ev.LoopBegan(step_id=step_id, items=tuple(find_items(step.loop, execution, parts))))
    except (InvalidArguments, LimitExceeded) as error:
        return (started, ev.StepFailed(step_id=step_id, code=error.code, message=error.message))


def _find_mismatch(condition: Condition, sources: BindingSources) -> str | None:
    """Return why the condition does not hold, as a sentence without its end; None if it does."""
    try:
        value = _find_bound(condition.value, sources)
    except AbsentValue as absent:
        return absent.message
    return Matcher(condition.matches).find_mismatch(value)


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
