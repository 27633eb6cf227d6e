"""How a step with conditions or a loop begins: it is skipped, fails, or starts with its items.

A condition holds when its value is there and fits its schema. A value that is too large for its schema fails the step,
because nobody knows whether it fits. So does a value that does not fit the inputs of the used plan that takes it.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.schema import TOO_MUCH_WORK, Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.bindings import WHEN, find_bindings
from planwarden.agent.core.pointers import ArtifactPart, ParsedTexts, PartAddress, find_list_fault
from planwarden.agent.core.references import AbsentValue, BindingSources, build_part, find_values, list_sources, resolve
from planwarden.agent.core.rehearsal import find_missing_result, is_unknown_in_rehearsal
from planwarden.agent.core.scope_checks import InputChecks
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.step_control import Condition, Loop


def begin_step(
    execution: ExecutionState, step_id: str, parts: Mapping[PartAddress, ArtifactPart]
) -> tuple[ev.Event, ...]:
    """Returns the events with which the step begins or is skipped.

    Raises:
        PartsNeeded: parts of artifacts have to be read first.
    """
    assert execution.plan is not None
    step = execution.steps[step_id].step
    sources = replace(list_sources(execution, parts), takes_lists=True)
    started = ev.StepStarted(step_id=step_id)
    checks = InputChecks(execution.plan, sources)
    missing = find_missing_result(execution, execution.steps[step_id])
    try:
        for condition in step.when:
            if missing is not None and not _is_known(execution, condition):
                continue
            checks.check(find_bindings(condition.value))
            if not holds(condition, sources):
                return (ev.StepSkipped(step_id=step_id, because=WHEN),)
        if missing is not None:
            return (ev.StepSkipped(step_id=step_id, because=missing),)
        checks.check(step.list_bindings())
        if step.loop is None:
            return (started,)
        return (started, ev.LoopBegan(step_id=step_id, items=tuple(_find_items(step.loop, sources))))
    except (InvalidArguments, LimitExceeded) as error:
        return (started, ev.StepFailed(step_id=step_id, code=error.code, message=error.message))


def _is_known(execution: ExecutionState, condition: Condition) -> bool:
    """Whether a rehearsal has the value of the condition."""
    [binding] = find_bindings(condition.value)
    state = execution.steps.get(binding.reference.step_id)
    return state is None or not is_unknown_in_rehearsal(execution, state)


def holds(condition: Condition, sources: BindingSources) -> bool:
    """Whether the value is there and fits.

    Raises:
        InvalidArguments, LimitExceeded: it cannot be judged.
        PartsNeeded: as `begin_step`.
    """
    [binding] = find_bindings(condition.value)
    try:
        values = find_values([binding], sources)
    except AbsentValue:
        return False
    value = values[binding.reference] if binding.reference in values else binding.written["default"]
    faults = Schema(condition.matches).find_faults(value)
    if TOO_MUCH_WORK in faults:
        raise LimitExceeded("a condition could not be judged: the value is too large for its schema")
    return not faults


def _find_items(loop: Loop, sources: BindingSources) -> list[JsonValue]:
    """The items; raises `InvalidArguments` or `LimitExceeded` if they are no list, or too many."""
    is_bound = isinstance(loop.items, dict)
    items = build_part(loop.items, sources, ParsedTexts()) if is_bound else resolve({"": loop.items}, sources)[""]
    if not isinstance(items, list):
        raise InvalidArguments(f"'forEach' leads to {type(items).__name__}, which is no list")
    if len(items) > loop.max_items:
        raise LimitExceeded(
            f"'forEach' has {len(items)} items, the step allows {loop.max_items}; raise 'maxItems' or take fewer"
        )
    if (fault := find_list_fault(items)) is not None:
        raise LimitExceeded(f"'forEach' {fault}")
    return items
