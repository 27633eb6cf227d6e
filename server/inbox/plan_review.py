"""A plan under review on its page: its steps, its text for editing, and the differences that a person made."""

import hashlib
from collections.abc import Mapping

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json, read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.inbox.value_view import ArgumentChange, find_changes
from planwarden.server.views.facts import escape_text

_ORDER = "the order of the steps"


class PlanEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What a person made of the plan."""

    text: str
    plan: dict[str, JsonValue] | None = None
    """None when the text is no JSON object."""
    changes: tuple[ArgumentChange, ...] = ()
    fault: str = ""
    """Why the text is no plan, escaped."""


def read_plan_edit(text: str, before: dict[str, JsonValue]) -> PlanEdit:
    """Returns the edit; it has no changes if the text is empty or says what the plan says."""
    if not text.strip():
        return PlanEdit(text="", plan=before)
    try:
        plan = read_json(text)
    except PlanwardenError as error:
        return PlanEdit(text=text, fault=f"The plan is {escape_text(error.message)}")
    if not isinstance(plan, dict):
        return PlanEdit(text=text, fault="The plan is no JSON object")
    return PlanEdit(text=text, plan=plan, changes=find_changes(_map_steps(before), _map_steps(plan)))


def hash_plan_edit(digest: str, plan: dict[str, JsonValue]) -> str:
    """Returns what only the page with the differences holds."""
    return hashlib.sha256(f"{digest}\0plan\0{canonical_json(plan)}".encode()).hexdigest()


def _map_steps(plan: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The steps by id, their order, and everything else that the plan says."""
    listed = plan.get("todoList", plan.get("steps"))
    steps = listed if isinstance(listed, list) else []
    found: dict[str, JsonValue] = {key: value for key, value in plan.items() if key not in ("todoList", "steps")}
    for number, step in enumerate(steps, 1):
        step_id = step.get("id") if isinstance(step, dict) else None
        found[f"step {step_id if isinstance(step_id, str) else number}"] = step
    found[_ORDER] = [step.get("id") if isinstance(step, dict) else None for step in steps]
    return found
