"""Checks that the steps of a plan fit together: names, references and bindings, and that no steps form a circle."""

from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.core.binding.bindings import (
    INPUTS,
    ITEM,
    WHEN,
    Earlier,
    EarlierNeeded,
    EarlierResult,
    Reference,
    find_binding_faults,
)
from planwarden.agent.core.plan.checks.bindings import suggest_binding
from planwarden.agent.core.plan.checks.faults import find_item_call_faults, quote_some
from planwarden.agent.core.plan.plan import Plan, PlanStep, list_own_names

MAX_BOUND = 1_000
"""The most bindings of one plan to earlier executions."""
MAX_EARLIER_BYTES = 1024 * 1024
"""The most bytes that the values of all bindings of one plan to earlier executions may have together."""


def find_reserved_names(plan: Plan) -> list[str]:
    """Return a sentence for each step whose id means something else in this plan, such as `item`."""
    own = list_own_names(plan)
    if any(step.when for step in plan.steps):
        own.add(WHEN)
    reserved = (step.step_id for step in plan.steps if step.step_id in own)
    return [f"step id {step_id!r} means something else in this plan; rename the step" for step_id in reserved]


def find_graph_faults(
    steps: tuple[PlanStep, ...], foreign: Mapping[Reference, str], earlier: Earlier | None, names: Collection[str]
) -> list[str]:
    """Return sentences about unknown and duplicate step ids, and about faulty bindings.

    `foreign` has the bindings to steps outside the plan, and `names` what bindings can name within the plan. Raises
    `EarlierNeeded` if `earlier` lacks some of the foreign bindings, but only if no other fault was found.
    """
    ids = [step.step_id for step in steps]
    unique_ids = set(ids)
    problems: list[str] = []
    malformed: set[str] = set()
    if len(unique_ids) != len(ids):
        twice = sorted({step_id for step_id in ids if ids.count(step_id) > 1})
        problems.append(f"several steps have the id {', '.join(map(repr, twice))}")
    for step in steps:
        dangling = [name for name in (*step.dependencies, *step.confirms) if name not in unique_ids]
        if dangling:
            unknown = quote_some(dict.fromkeys(dangling))
            hint = (
                "" if earlier is None else '; leave out steps of an earlier plan: {"$from": STEP} takes their results'
            )
            problems.append(
                f"step {step.step_id!r} refers to unknown steps: {unknown}; the plan has {quote_some(ids)}{hint}"
            )
        for call in step.tool_calls:
            if faults := list(find_binding_faults(call.arguments)):
                problems.extend(f"step {step.step_id!r}: {fault}" for fault in faults)
                malformed.add(step.step_id)
        problems.extend(f"step {step.step_id!r}: {fault}" for fault in find_item_call_faults(step))
    if not problems or earlier is None:
        readable = {reference: step_id for reference, step_id in foreign.items() if step_id not in malformed}
        problems.extend(_find_foreign_faults(readable, earlier, names))
    return problems


def find_circle(steps: tuple[PlanStep, ...]) -> list[str]:
    """Return a list with one sentence about steps that wait for each other in a circle; empty if there is no circle."""
    try:
        TopologicalSorter({step.step_id: step.dependencies for step in steps}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return [f"the steps wait for each other in a circle: {' -> '.join(circle)}{_explain_circle(steps, circle)}"]
    return []


def _explain_circle(steps: tuple[PlanStep, ...], circle: list[str]) -> str:
    """Return which binding makes the steps wait for each other, as the end of a sentence; empty text if none does."""
    by_id = {step.step_id: step for step in steps}
    for before, after in pairwise(circle):
        if any(binding.reference.step_id == before for binding in by_id[after].list_bindings()):
            why = "itself" if before == after else f"{before!r}, which runs only after it"
            return f"; step {after!r} takes a value from {why}"
    return ""


def _advise(reference: Reference, names: Collection[str]) -> str | None:
    """Return what to write instead of a binding to something outside the plan; None if there is no suggestion."""
    if reference.step_id == INPUTS:
        return "to take a value that a run is given, declare it in plan.inputs, the JSON Schema of an object"
    # The loop of another step may have put `item` into `names`, but this reference is outside that loop.
    right = suggest_binding(reference.step_id, {*names} - {ITEM}, reference.pointer)
    return None if right is None else f"write {right}"


def _find_foreign_faults(
    foreign: Mapping[Reference, str], earlier: Earlier | None, names: Collection[str]
) -> Iterator[str]:
    """Yield why bindings to earlier executions have no value; `names` is what bindings can name within the plan.

    Raises:
        EarlierNeeded: some of the bindings were not looked up yet.
    """
    if earlier is None:
        for reference, step_id in foreign.items():
            fault = f"step {step_id!r} refers to unknown step {reference.step_id[:64]!r}"
            hint = "to take the result of an earlier execution, run the plan on its thread"
            yield f"{fault}; {_advise(reference, names) or hint}"
        return
    if len(foreign) > MAX_BOUND:
        yield f"the plan takes {len(foreign)} values from earlier executions, the limit is {MAX_BOUND}"
        return
    if missing := foreign.keys() - earlier.keys():
        raise EarlierNeeded(missing)
    results = {reference: earlier[reference] for reference in foreign}
    for reference, why in results.items():
        if isinstance(why, str):
            advice = _advise(reference, names)
            yield f"step {foreign[reference]!r}: {why}" + (f"; {advice}" if advice is not None else "")
    values = [result.value for result in results.values() if isinstance(result, EarlierResult)]
    if measure_at_least(values, MAX_EARLIER_BYTES) > MAX_EARLIER_BYTES:
        yield (
            f"the values that the plan takes from earlier executions have more than {MAX_EARLIER_BYTES} bytes "
            "together; point to the parts that are needed"
        )
