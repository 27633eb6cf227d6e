"""Whether the steps of a plan fit together: names, references, bindings, and no circle."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core.bindings import WHEN, Earlier, Reference, find_binding_faults, is_plain
from planwarden.agent.core.plan import Plan, PlanStep, list_own_names
from planwarden.agent.core.plan_checks.arguments import find_foreign_faults
from planwarden.agent.core.plan_checks.faults import MAX_LISTED, join_faults, quote_some


def check_own_names(plan: Plan) -> None:
    """Raises `InvalidPlan` when a step has a name that stands for something else in this plan."""
    own = list_own_names(plan)
    if any(step.when for step in plan.steps):
        own.add(WHEN)
    if taken := [step.step_id for step in plan.steps if step.step_id in own]:
        raise InvalidPlan(
            f"step id {taken[0]!r} stands for something else in this plan; rename the step",
            details={"problems": [f"step id {taken[0]!r} is reserved"]},
        )


def check_graph(steps: tuple[PlanStep, ...], foreign: Mapping[Reference, str], earlier: Earlier | None) -> None:
    """Raises `InvalidPlan` unless every step that is named exists, each once.

    `foreign` are bindings to steps that the plan does not have. Raises `EarlierNeeded` if `earlier` lacks some of them.
    """
    ids = [step.step_id for step in steps]
    place = {step_id: index for index, step_id in enumerate(ids)}
    problems: list[str] = []
    if len(place) != len(ids):
        twice = sorted({step_id for step_id in ids if ids.count(step_id) > 1})
        problems.append(f"duplicate step id(s) {', '.join(map(repr, twice))}")
    for step in steps:
        dangling = [name for name in (*step.dependencies, *step.confirms) if name not in place]
        if dangling:
            names = quote_some(dict.fromkeys(dangling))
            problems.append(f"step {step.step_id!r} refers to unknown step(s) {names}")
        for call in step.tool_calls:
            if not is_plain(call.arguments):
                problems.extend(f"step {step.step_id!r}: {fault}" for fault in find_binding_faults(call.arguments))
    if not problems or earlier is None:
        problems.extend(find_foreign_faults(foreign, earlier))
    if problems:
        raise InvalidPlan(
            f"the plan's steps do not fit together: {join_faults(problems)}",
            details={
                "problems": list[JsonValue](problems[:MAX_LISTED]),
                "availableSteps": list[JsonValue](ids[:MAX_LISTED]),
            },
        )


def check_order(steps: tuple[PlanStep, ...]) -> None:
    """Raises `InvalidPlan` when steps wait for each other in a circle."""
    place = {step.step_id: index for index, step in enumerate(steps)}
    if all(place.get(name, -1) < index for index, step in enumerate(steps) for name in step.dependencies):
        return
    try:
        TopologicalSorter({step.step_id: step.dependencies for step in steps}).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        raise InvalidPlan(
            f"the steps wait for each other in a circle: {' -> '.join(cycle)}",
            details={"problems": ["cycle"], "cycle": list[JsonValue](cycle)},
        ) from None
