"""Whether the steps of a plan fit together: names, references, bindings, and no circle."""

from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from planwarden.agent.core.binding.bindings import WHEN, Earlier, Reference, find_binding_faults, is_plain
from planwarden.agent.core.plan.checks.arguments import find_foreign_faults
from planwarden.agent.core.plan.checks.faults import quote_some
from planwarden.agent.core.plan.item_calls import find_item_call_faults
from planwarden.agent.core.plan.plan import Plan, PlanStep, list_own_names


def find_reserved_names(plan: Plan) -> list[str]:
    """Return which steps have a name that means something else in this plan, one sentence each."""
    own = list_own_names(plan)
    if any(step.when for step in plan.steps):
        own.add(WHEN)
    reserved = (step.step_id for step in plan.steps if step.step_id in own)
    return [f"step id {step_id!r} means something else in this plan; rename the step" for step_id in reserved]


def find_graph_faults(
    steps: tuple[PlanStep, ...], foreign: Mapping[Reference, str], earlier: Earlier | None, names: Collection[str]
) -> list[str]:
    """Return a sentence for each step that is named and does not exist, exists twice, or waits for itself.

    `foreign` are bindings to steps that the plan does not have, and `names` what its bindings can name. Raises
    `EarlierNeeded` if `earlier` lacks some of them.
    """
    ids = [step.step_id for step in steps]
    place = {step_id: index for index, step_id in enumerate(ids)}
    problems: list[str] = []
    malformed: set[str] = set()
    if len(place) != len(ids):
        twice = sorted({step_id for step_id in ids if ids.count(step_id) > 1})
        problems.append(f"duplicate step id(s) {', '.join(map(repr, twice))}")
    for step in steps:
        dangling = [name for name in (*step.dependencies, *step.confirms) if name not in place]
        if dangling:
            unknown = quote_some(dict.fromkeys(dangling))
            hint = (
                "" if earlier is None else '; leave out steps of an earlier plan, {"$from": STEP} takes their results'
            )
            problems.append(
                f"step {step.step_id!r} refers to unknown step(s) {unknown}; the plan has {quote_some(ids)}{hint}"
            )
        for call in step.tool_calls:
            if not is_plain(call.arguments) and (faults := list(find_binding_faults(call.arguments))):
                problems.extend(f"step {step.step_id!r}: {fault}" for fault in faults)
                malformed.add(step.step_id)
        problems.extend(f"step {step.step_id!r}: {fault}" for fault in find_item_call_faults(step))
    if not problems or earlier is None:
        readable = {reference: step_id for reference, step_id in foreign.items() if step_id not in malformed}
        problems.extend(find_foreign_faults(readable, earlier, names))
    return [*problems, *_find_circle(steps)]


def _find_circle(steps: tuple[PlanStep, ...]) -> list[str]:
    """Return why steps wait for each other, in one sentence or none."""
    place = {step.step_id: index for index, step in enumerate(steps)}
    if all(place.get(name, -1) < index for index, step in enumerate(steps) for name in step.dependencies):
        return []
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
