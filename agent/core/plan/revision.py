"""Revises a plan while it runs: a patch changes steps that have not begun, and the result is checked like any plan.

A confirmation is a step that asks a person or confirms other steps. An asking step is a confirmation, or a step with
calls that may need approval. An effect is a call that does more than read; a silent effect may run unasked. The rules:

* A model may add, change, remove and move pending steps, but not confirmations.
* Once a confirmation has begun, a model can touch neither the steps that it covers nor the steps before them.
* A step that waits for an asking step, directly or not, must go on waiting for it.
* A new effect must wait for every confirmation, and for every asking step that comes before a silent effect. It need
  not wait for a finished step that asked as agreed.
* An asking step before an effect may get other calls or arguments only if they certainly ask.

The patch is checked against the last agreed plan too, so that no series of patches frees an effect from its question.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json, digest
from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.form import EXAMPLES, describe
from planwarden.agent.core.plan.plan import (
    Plan,
    PlanStep,
    ToolFacts,
    find_steps_before,
    list_step_tools,
    plan_to_json,
    step_to_json,
)
from planwarden.agent.core.plan.plan_parser import PlanIntake

MAX_OPERATIONS = 50
MAX_NAMED = 20
_GATE_KEYS = ("when", "forEach", "toolValidationMode", "onReject")
"""The keys of a step that decide, as its calls do, whether the step asks a person and what a rejection stops."""
AskCheck = Callable[[PlanStep, str, dict[str, JsonValue] | None], bool | None]
"""Returns whether the step's call of this tool asks a person; None if only the run can tell. The arguments are None
if a model will write them."""
_PlannedCall = tuple[str, str, bool | None, str]
"""The call's tool; its arguments, with the conditions and the loop of the step; whether the call asks; and, if it may
run unasked, which calls of the step may ask before it."""
_UNKNOWN = ToolFacts(is_blocking=False)
_KEYS: dict[str, frozenset[str]] = {
    "add": frozenset({"op", "step", "after"}),
    "change": frozenset({"op", "id", "set"}),
    "remove": frozenset({"op", "id"}),
    "move": frozenset({"op", "id", "after"}),
}
OPERATION_SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "required": ["op"],
    "properties": {
        "op": {"type": "string", "enum": [*_KEYS]},
        "id": {"type": "string", "description": "of the step to change, remove or move"},
        "step": {"type": "object", "description": "the step to add, as in the plan"},
        "set": {"type": "object", "description": "keys to change"},
        "after": {"type": "string", "description": "id; without it at the end"},
    },
}
"""One operation, as models with tool calling see it."""


def revise(
    plan: Plan,
    patch: JsonValue,
    *,
    agreed: Plan,
    pending: Collection[str],
    finished: Collection[str],
    plans: PlanIntake,
    asks: AskCheck,
    reused_ids: Collection[str] = (),
) -> tuple[Plan, dict[str, tuple[str, ...]]]:
    """Return the plan after the patch, and the ids of steps that were `added`, `changed`, `removed` and `moved`.

    The patch is a list of operations, applied in order: `{"op": "add", "step": {...}, "after": ID?}`,
    `{"op": "change", "id": ID, "set": {...}}`, `{"op": "remove", "id": ID}`, `{"op": "move", "id": ID, "after": ID?}`.
    Without `after`, a step goes to the end. `agreed` is the plan as it was accepted or last approved in a review.
    `finished` has the ids of the steps that are done. `reused_ids` are steps of earlier executions from which the plan
    takes values: no new step may have such an id, because the plan would then take the value of the new step.

    Raises:
        InvalidPlan, LimitExceeded: an operation is malformed or not allowed, or the result is not a plan.
        EarlierNeeded, ParsingNeeded: as `plans.read` raises them.
    """
    if not isinstance(patch, list) or not 0 < len(patch) <= MAX_OPERATIONS:
        raise InvalidPlan(f"'revise' is not a list of 1 to {MAX_OPERATIONS} operations")
    begun = {step.step_id for step in plan.steps}.difference(pending)
    current, deciding = _Gates(plan, plans.tools, asks), dict[str, str]()
    earlier_gates = (current,) if agreed is plan else (_Gates(agreed, plans.tools, asks), current)
    for earlier in earlier_gates:
        # A gate may ask or not, depending on its conditions, its loop and the values that its calls take. Then the
        # steps before the gate decide whether it asks, so a model must not revise them either.
        for name in sorted(earlier.effect_gates - begun):
            step = earlier.steps[name]
            if step.when or step.loop or (name not in earlier.always_asking and step.list_bindings()):
                deciding |= dict.fromkeys(earlier.waits[name], name)
    confirmed = _find_confirmed_steps(current, pending)
    draft = _Draft(plan, frozenset(pending), current.confirmations, deciding | confirmed)
    for operation in patch:
        draft.apply(operation)
    if hidden := sorted({*reused_ids}.intersection(draft.difference["added"])):
        raise InvalidPlan(
            f"a new step cannot be named {hidden[0]!r}: the plan takes values from the step of that name in an earlier "
            "execution"
        )
    revised, _ = plans.read({**plan_to_json(plan), "todoList": [*draft.steps]}, author="model", earlier_plan=plan)
    after = _Gates(revised, plans.tools, asks)
    for earlier in earlier_gates:
        _check_dependencies(earlier, after, finished)
    return revised, {kind: tuple(ids) for kind, ids in draft.difference.items()}


class _Draft:
    """The steps as JSON, to which the operations are applied one by one."""

    def __init__(
        self, plan: Plan, pending: frozenset[str], confirmations: frozenset[str], confirmed: Mapping[str, str]
    ) -> None:
        self.steps = [step_to_json(step) for step in plan.steps]
        self.difference: dict[str, list[str]] = {kind: [] for kind in ("added", "changed", "removed", "moved")}
        """The ids of the steps by kind of change, in the order of the operations."""
        self._pending = pending
        self._confirmations = confirmations
        self._confirmed = confirmed

    def apply(self, operation: JsonValue) -> None:
        if not isinstance(operation, dict):
            raise InvalidPlan(f"an operation must be an object, not {describe(operation)}; send {EXAMPLES['revise']}")
        name = operation.get("op")
        if not isinstance(name, str) or name not in _KEYS:
            raise InvalidPlan(
                f"'op' must be add, change, remove or move, not {describe(name)}; send {EXAMPLES['revise']}"
            )
        operation = {key: str(part) if type(part) is int else part for key, part in operation.items()}
        unknown = operation.keys() - _KEYS[name]
        if unknown:
            raise InvalidPlan(
                f"operation {name!r} has no key {', '.join(map(repr, sorted(unknown)))}; it takes "
                f"{', '.join(sorted(_KEYS[name]))}"
            )
        if name == "add":
            self._add(operation.get("step"), operation.get("after"))
            return
        step = self._find_step(operation.get("id"), name)
        step_id = str(step["id"])
        if name == "change":
            self._change(step, operation.get("set"))
            return
        self.steps.remove(step)
        if name == "remove":
            self.difference["removed"].append(step_id)
        else:
            self.steps.insert(self._find_position(operation.get("after")), step)
            self.difference["moved"].append(step_id)

    def _add(self, step: JsonValue, after: JsonValue) -> None:
        if not isinstance(step, dict):
            raise InvalidPlan(f"operation 'add' has no object 'step'; send {EXAMPLES['revise']}")
        self.steps.insert(self._find_position(after), step)
        self.difference["added"].append(str(step.get("id"))[:64])

    def _change(self, step: dict[str, JsonValue], fields: JsonValue) -> None:
        if not isinstance(fields, dict) or "id" in fields:
            raise InvalidPlan(f"'set' of step {step['id']!r} is not an object of fields other than its id")
        if "requiredTools" in fields and "toolCalls" not in fields:
            # The old calls are of other tools, which would contradict the new `requiredTools`.
            step.pop("toolCalls", None)
        step.update(fields)
        self.difference["changed"].append(str(step["id"]))

    def _find_step(self, step_id: JsonValue, name: str) -> dict[str, JsonValue]:
        step = next((step for step in self.steps if step["id"] == step_id), None)
        if step is None:
            raise InvalidPlan(f"operation {name!r} names {self._describe_unknown(step_id)}")
        if step_id in self._confirmations:
            raise InvalidPlan(f"step {step_id!r} asks a person or confirms others and cannot be revised")
        if step_id not in self._pending:
            raise InvalidPlan(f"step {step_id!r} has begun and cannot be revised")
        if (covered := self._confirmed.get(str(step["id"]))) is not None:
            raise InvalidPlan(
                f"step {step_id!r} cannot be revised: a person may be asked about step {covered!r} and what it needs"
            )
        return step

    def _find_position(self, after: JsonValue) -> int:
        if after is None:
            return len(self.steps)
        for index, step in enumerate(self.steps):
            if step["id"] == after:
                return index + 1
        raise InvalidPlan(f"'after' names {self._describe_unknown(after)}")

    def _describe_unknown(self, step_id: JsonValue) -> str:
        names = ", ".join(repr(step["id"]) for step in self.steps[:MAX_NAMED])
        return f"unknown step {str(step_id)[:64]!r}; the plan has {names}"


class _Gates:
    """Which steps of a plan may ask a person, and which steps wait for them."""

    def __init__(self, plan: Plan, tools: Mapping[str, ToolFacts], asks: AskCheck) -> None:
        self.steps = {step.step_id: step for step in plan.steps}
        self.waits = {name: find_steps_before(plan.steps, name) for name in self.steps}
        self.confirmations = frozenset(
            name
            for name, step in self.steps.items()
            if step.confirms or any(tools.get(tool, _UNKNOWN).is_blocking for tool in list_step_tools(step))
        )
        self.asking = {*self.confirmations}
        """The confirmations, and the steps whose calls may need approval."""
        self.always_asking = set[str]()
        """The steps that cannot be completed without asking, whatever the arguments of their calls are."""
        self.effects: dict[str, Counter[_PlannedCall]] = {}
        """The calls of each step that do more than read."""
        for name, step in self.steps.items():
            calls = _list_calls(step, asks)
            self.effects[name] = Counter(call for call in calls if not tools.get(call[0], _UNKNOWN).only_reads)
            if any(verdict is not False for _, _, verdict, _ in calls):
                self.asking.add(name)
            if step.tool_validation_mode == "strict" and any(verdict for _, _, verdict, _ in calls):
                self.always_asking.add(name)
        unasked = (self.waits[name] for name, effects in self.effects.items() if not _all_ask(effects))
        within = {name for name, effects in self.effects.items() if any(behind for *_, behind in effects)}
        self.effect_gates = self.confirmations | self.asking & within.union(*unasked)
        """The steps that every new effect must await: confirmations, and asking steps before a silent effect. A silent
        effect may have no question of its own, so a person decides about it when an earlier call asks."""

    def asks_as_before(self, step_id: str, before: "_Gates") -> bool:
        """Return whether the step asks in every case in which it asked in the plan `before`."""
        if step_id not in self.asking & before.asking:
            return False
        keys = _GATE_KEYS if step_id in self.always_asking else (*_GATE_KEYS, "requiredTools", "toolCalls")
        return _write(self.steps[step_id], *keys) == _write(before.steps[step_id], *keys)


def _find_confirmed_steps(gates: _Gates, pending: Collection[str]) -> dict[str, str]:
    """Return the steps that a begun confirmation covers, and the steps before them, each with the covered step.

    The person's answer relies on the steps before, because they decide the conditions and the loop of a covered step.
    """
    confirming = (step for step in reversed(gates.steps.values()) if step.confirms and step.step_id not in pending)
    covered_ids = (name for step in confirming for name in reversed(step.confirms))
    confirmed: dict[str, str] = {}
    for name in covered_ids:
        if name not in confirmed:
            confirmed |= dict.fromkeys((name, *gates.waits[name]), name)
    return confirmed


def _check_dependencies(before: _Gates, after: _Gates, finished: Collection[str]) -> None:
    """Raise `InvalidPlan` if a step or a new effect fails to wait for a step that may ask a person."""
    same = {name for name in after.steps if after.asks_as_before(name, before)}
    # A new effect need not wait for a finished step that asked as before.
    effect_gates = before.effect_gates - same.intersection(finished)
    for name, step in after.steps.items():
        earlier, calls = before.steps.get(name), after.effects[name]
        waits_now, awaited = after.waits[name], set[str]()
        if new := calls - before.effects.get(name, Counter()):
            awaited |= effect_gates - ({name} if _all_ask(new) else set[str]())
        if earlier is not None and (calls or not {*step.dependencies} >= {*earlier.dependencies}):
            awaited |= before.asking & before.waits[name]
        if lost := sorted(awaited - (waits_now & same if calls else waits_now)):
            if name in lost:
                raise InvalidPlan(f"step {name!r} must go on asking a person before each call that changes something")
            still = "" if earlier is None else "still "
            end = "" if same.issuperset(lost) else ", which must go on asking as before"
            raise InvalidPlan(f"step {name!r} must {still}wait for {', '.join(map(repr, lost))}{end}")


def _list_calls(step: PlanStep, asks: AskCheck) -> list[_PlannedCall]:
    """Return the calls that the plan lists in the step, and those that a model will write."""
    control, behind, calls = _write(step, "when", "forEach", "maxItems"), "", list[_PlannedCall]()
    for call in step.tool_calls:
        text, verdict = canonical_json([call.arguments, control]), asks(step, call.tool_name, call.arguments)
        calls.append((call.tool_name, text, verdict, "" if verdict else behind))
        if verdict is not False and behind != "certainly":
            is_certain = verdict and step.tool_validation_mode == "strict"
            behind = "certainly" if is_certain else digest([behind, call.tool_name, text])
    # A model may call the other tools in any order, so no call of the step certainly comes before theirs.
    open_tools = {*step.required_tools}.difference(name for name, *_ in calls)
    return calls + [(name, control, asks(step, name, None), "") for name in open_tools]


def _all_ask(calls: Iterable[_PlannedCall]) -> bool:
    return all(verdict for _, _, verdict, _ in calls)


def _write(step: PlanStep, *keys: str) -> str:
    return canonical_json([*map(step_to_json(step).get, keys)])
