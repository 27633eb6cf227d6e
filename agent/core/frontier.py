"""The steps for which something can follow next, kept up to date, so that nobody looks at every step of a long plan.

A step is in the frontier from the first moment at which it may begin or has to be skipped until it is over: a pending
step without dependencies, or with one that is over, and every step in progress.
"""

from collections.abc import Mapping

from planwarden.agent.core.state import STEP_TERMINAL, ExecutionState, PlanOrder, StepState


def build_order(steps: Mapping[str, StepState]) -> PlanOrder:
    """Returns the place of each step in the plan, and which steps depend on it."""
    followers: dict[str, list[str]] = {}
    for name, state in steps.items():
        for needed in state.needs:
            followers.setdefault(needed, []).append(name)
    places = {name: place for place, name in enumerate(steps)}
    return PlanOrder(places=places, followers={name: tuple(found) for name, found in followers.items()})


def find_frontier(steps: Mapping[str, StepState]) -> tuple[str, ...]:
    """Returns the frontier of a new or revised plan, in plan order."""
    over = {name for name, state in steps.items() if state.status in STEP_TERMINAL}
    return tuple(
        name
        for name, state in steps.items()
        if name not in over and (state.status != "pending" or not (needs := state.needs) or not over.isdisjoint(needs))
    )


def move_frontier(execution: ExecutionState, over: str) -> tuple[str, ...]:
    """Returns the frontier after the step `over` has ended, in plan order."""
    order, steps = execution.order, execution.steps
    kept = [name for name in execution.frontier if name != over]
    known = {*kept}
    new = [name for name in order.followers.get(over, ()) if name not in known and steps[name].status == "pending"]
    # Each of them is in plan order.
    return tuple(sorted([*kept, *new], key=order.places.__getitem__)) if kept and new else (*kept, *new)
