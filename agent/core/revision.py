"""Revising a plan while it runs: a patch on steps that have not begun, checked like a plan, shown as a difference.

A model may add, change, remove and move pending steps. It cannot touch a step that has begun, nor a gate (a step that asks
a person, or confirms others), nor cut a step loose from a gate that it waits for. The result is checked as a whole plan.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core.plan import Plan, ToolFacts, parse_plan, plan_to_json

MAX_OPERATIONS = 50
_KEYS: dict[str, frozenset[str]] = {
    "add": frozenset({"op", "step", "after"}),
    "change": frozenset({"op", "id", "set"}),
    "remove": frozenset({"op", "id"}),
    "move": frozenset({"op", "id", "after"}),
}


@dataclass(slots=True, kw_only=True)
class Difference:
    """Ids of steps, in the order of the operations."""

    added: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    moved: list[str] = field(default_factory=list[str])


def revise(
    plan: Plan, patch: JsonValue, *, pending: Collection[str], tools: Mapping[str, ToolFacts], max_steps: int
) -> tuple[Plan, Difference]:
    """The plan after the patch, and what is different in it. The patch is a list of operations:

    `{"op": "add", "step": {...}, "after": ID?}`, `{"op": "change", "id": ID, "set": {...}}`, `{"op": "remove", "id": ID}`,
    `{"op": "move", "id": ID, "after": ID?}`; without `after` a step goes to the end.

    Raises:
        InvalidPlan, LimitExceeded: an operation is malformed or not allowed, or the result is not a plan.
    """
    if not isinstance(patch, list) or not 0 < len(patch) <= MAX_OPERATIONS:
        raise InvalidPlan(f"'revise' is not a list of 1 to {MAX_OPERATIONS} operations")
    gates = _gates(plan, tools)
    work = _Draft(plan, frozenset(pending) - gates, gates)
    for operation in patch:
        work.perform(operation)
    revised, _ = parse_plan({"todoList": [*work.steps]}, author="model", tools=tools, max_steps=max_steps)
    _keep_gates(plan, revised, gates)
    return revised, work.difference


class _Draft:
    """The steps as JSON between operations."""

    def __init__(self, plan: Plan, touchable: frozenset[str], gates: frozenset[str]) -> None:
        listed = plan_to_json(plan)["todoList"]
        assert isinstance(listed, list)
        self.steps: list[dict[str, JsonValue]] = [step for step in listed if isinstance(step, dict)]
        self.difference = Difference()
        self._touchable = touchable
        self._gates = gates

    def perform(self, operation: JsonValue) -> None:
        name = operation.get("op") if isinstance(operation, dict) else None
        if not isinstance(operation, dict) or not isinstance(name, str) or name not in _KEYS:
            raise InvalidPlan("an operation is not an object whose 'op' is add, change, remove or move")
        unknown = operation.keys() - _KEYS[name]
        if unknown:
            raise InvalidPlan(f"operation {name!r} has unknown key(s) {', '.join(map(repr, sorted(unknown)))}")
        if name == "add":
            self._add(operation.get("step"), operation.get("after"))
            return
        step = self._step(operation.get("id"), name)
        step_id = str(step["id"])
        if name == "change":
            self._change(step, operation.get("set"))
            return
        self.steps.remove(step)
        if name == "remove":
            self.difference.removed.append(step_id)
        else:
            self.steps.insert(self._place(operation.get("after")), step)
            self.difference.moved.append(step_id)

    def _add(self, step: JsonValue, after: JsonValue) -> None:
        if not isinstance(step, dict):
            raise InvalidPlan("operation 'add' has no object 'step'")
        self.steps.insert(self._place(after), step)
        self.difference.added.append(str(step.get("id"))[:64])

    def _change(self, step: dict[str, JsonValue], fields: JsonValue) -> None:
        if not isinstance(fields, dict) or "id" in fields:
            raise InvalidPlan(f"'set' of step {step['id']!r} is not an object of fields other than its id")
        if "requiredTools" in fields and "toolCalls" not in fields:
            # Calls that were written for other tools would contradict what the step promises now.
            step.pop("toolCalls", None)
        step.update(fields)
        self.difference.changed.append(str(step["id"]))

    def _step(self, step_id: JsonValue, name: str) -> dict[str, JsonValue]:
        step = next((step for step in self.steps if step["id"] == step_id), None)
        if step is None:
            raise InvalidPlan(f"operation {name!r} names unknown step {str(step_id)[:64]!r}")
        if step_id in self._gates:
            raise InvalidPlan(f"step {step_id!r} asks a person or confirms others and cannot be revised")
        if step_id not in self._touchable:
            raise InvalidPlan(f"step {step_id!r} has begun and cannot be revised")
        return step

    def _place(self, after: JsonValue) -> int:
        if after is None:
            return len(self.steps)
        for index, step in enumerate(self.steps):
            if step["id"] == after:
                return index + 1
        raise InvalidPlan(f"'after' names unknown step {str(after)[:64]!r}")


def _gates(plan: Plan, tools: Mapping[str, ToolFacts]) -> frozenset[str]:
    return frozenset(
        step.step_id
        for step in plan.steps
        if step.confirms
        or any(
            name in tools and tools[name].is_blocking
            for name in (*step.required_tools, *(call.tool_name for call in step.tool_calls))
        )
    )


def _keep_gates(before: Plan, after: Plan, gates: frozenset[str]) -> None:
    kept = {step.step_id: step for step in after.steps}
    for step in before.steps:
        now = kept.get(step.step_id)
        lost = [name for name in step.dependencies if name in gates and now and name not in now.dependencies]
        if lost:
            raise InvalidPlan(f"step {step.step_id!r} must still wait for {', '.join(map(repr, lost))}")
