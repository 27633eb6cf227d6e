"""Puts the plans of a catalogue in the place of the steps that use them."""

from pydantic import JsonValue

from planwarden.agent.core.plan_input import MAX_STEPS
from planwarden.agent.core.uses import expand_uses
from planwarden.server.plans.folders import PlanCatalogue
from planwarden.server.plans.plan_file import SavedPlan


def expand_plan(
    plan: JsonValue, catalogue: PlanCatalogue, *, name: str | None = None, max_steps: int = MAX_STEPS
) -> tuple[JsonValue, tuple[SavedPlan, ...]]:
    """Returns the plan as `parse_plan` takes it, and the saved plans in it; `name` is its own, if it is a saved one.

    Raises `InvalidPlan` and `LimitExceeded` as `expand_uses`.
    """
    document, used = expand_uses(plan, lambda wanted: catalogue.find(wanted).document, name=name, max_steps=max_steps)
    return document, tuple(catalogue.find(found) for found in used)
