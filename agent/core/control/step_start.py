"""How a step with conditions or a loop begins: it is skipped, fails, or starts with its items.

A condition holds if its value is there and fits its schema. If a condition does not hold, the event that skips the step
says why. A value that is too large to check fails the step, because nobody knows whether it fits.
"""

from collections.abc import Mapping

from jsonpointer import escape

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.form import describe
from planwarden.agent.common.schema_cost import measure_value
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import WHEN, find_bindings
from planwarden.agent.core.binding.conditions import Matcher
from planwarden.agent.core.binding.pointers import ArtifactPart, PartAddress, describe_keys, find_list_fault
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.references import AbsentValue, BindingSources, find_values, list_sources, resolve
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.execution.verify import find_missing_result, is_unknown_in_rehearsal
from planwarden.agent.core.plan.plan import Condition, PlanStep

MAX_REASON_CHARS = 500
MAX_LOOP_CALLS = 20_000
"""The most calls that a loop makes for all of its items together."""


def begin_step(
    execution: ExecutionState, step_id: str, parts: Mapping[PartAddress, ArtifactPart]
) -> tuple[ev.Event, ...]:
    """Return the events with which the step begins, is skipped or fails.

    Raises:
        PartsNeeded: parts of artifacts have to be read first.
    """
    step = execution.steps[step_id].step
    sources = list_sources(execution, parts, takes_lists=True)
    started = ev.StepStarted(step_id=step_id)
    missing = find_missing_result(execution, execution.steps[step_id])
    try:
        for number, condition in enumerate(step.when):
            if missing is not None and not _is_known(execution, condition):
                continue
            if (why := find_mismatch(condition, sources)) is not None:
                which = f"when[{number}]: " if len(step.when) > 1 else ""
                return (ev.StepSkipped(step_id=step_id, because=WHEN, reason=f"{which}{why}"[:MAX_REASON_CHARS]),)
        if missing is not None:
            return (ev.StepSkipped(step_id=step_id, because=missing),)
        if step.loop is None:
            return (started,)
        return (started, ev.LoopBegan(step_id=step_id, items=tuple(find_items(step, sources))))
    except (InvalidArguments, LimitExceeded) as error:
        return (started, ev.StepFailed(step_id=step_id, code=error.code, message=error.message))


def _is_known(execution: ExecutionState, condition: Condition) -> bool:
    """Return whether a rehearsal knows the value of the condition."""
    [binding] = find_bindings(condition.value)
    state = execution.steps.get(binding.reference.step_id)
    return state is None or not is_unknown_in_rehearsal(execution, state)


def find_mismatch(condition: Condition, sources: BindingSources) -> str | None:
    """Return why the condition does not hold, as a sentence without its full stop; None if it holds.

    Raises:
        InvalidArguments, LimitExceeded: nobody can tell whether it holds.
        PartsNeeded: as in `begin_step`.
    """
    name = canonical_json(condition.value)
    try:
        if name not in sources.sizes:
            value = _find_bound(condition.value, sources)
            sources.sizes[name] = (value, measure_value(value))
    except AbsentValue as absent:
        return absent.message
    except ValueError as error:
        raise LimitExceeded(f"a condition could not be judged: {error}") from None
    return Matcher(condition.matches).find_mismatch(*sources.sizes[name])


def _find_bound(value: dict[str, JsonValue], sources: BindingSources) -> JsonValue:
    """Return the value that the binding refers to, or its default. Raises the same errors as `resolve`."""
    [binding] = find_bindings(value)
    values = find_values([binding], sources)
    return values[binding.reference] if binding.reference in values else value["default"]


def _name_lists(value: JsonValue, pointer: str) -> str:
    """Return the end of a sentence that names the pointers to the value's lists; empty if it has no lists."""
    parts = value.items() if isinstance(value, dict) else ()
    names = describe_keys((escape(key) for key, part in parts if isinstance(part, list)), f"{pointer}/")
    return f"; it has lists at {names}" if names else ""


def find_items(step: PlanStep, sources: BindingSources) -> list[JsonValue]:
    """Return the items of the step's loop. Build `sources` with `takes_lists`, so that long lists can be read.

    Raises:
        InvalidArguments, LimitExceeded: the items are not there, not a list, or too many or too large.
        PartsNeeded: parts of artifacts have to be read first.
    """
    loop = step.loop
    assert loop is not None
    expression = loop.items
    items = _find_bound(expression, sources) if isinstance(expression, dict) else resolve({"": expression}, sources)[""]
    if not isinstance(items, list):
        pointer = str(expression.get("pointer", "")) if isinstance(expression, dict) else ""
        raise InvalidArguments(
            f"'forEach' leads to {describe(items)}, which is not a list{_name_lists(items, pointer)}"
        )
    if len(items) > loop.max_items:
        raise LimitExceeded(
            f"'forEach' has {len(items)} items, the step allows {loop.max_items}; raise 'maxItems' or take fewer"
        )
    if len(items) * len(step.tool_calls) > MAX_LOOP_CALLS:
        raise LimitExceeded(
            f"'forEach' has {len(items)} items with {len(step.tool_calls)} calls each, and a loop makes at most "
            f"{MAX_LOOP_CALLS} calls; take fewer items"
        )
    if (fault := find_list_fault(items)) is not None:
        raise LimitExceeded(f"'forEach' {fault}")
    return items
