"""Plans: the values that a checked plan consists of, and what can be read off them.

A plan is a list of steps that form a directed acyclic graph. `plan_parser` makes one from JSON,
with every default filled in and every dependency explicit.
"""

from collections.abc import Callable, Collection
from typing import Literal

import msgspec

from planwarden.agent.common.struct import JsonValue, StoredStruct
from planwarden.agent.core.binding.bindings import (
    INPUTS,
    ITEM,
    ITEM_INDEX,
    Binding,
    Earlier,
    EarlierResult,
    Path,
    Reference,
    find_bindings,
    is_plain,
)
from planwarden.agent.core.plan.plan_words import OnReject, StepType, ValidationMode
from planwarden.agent.core.plan.step_control import Condition, Loop, RetryPolicy, StepControl, control_to_json

Author = Literal["caller", "model"]
"""Who wrote a plan."""

ArgumentCheck = Callable[[dict[str, JsonValue], Collection[Path], int], tuple[tuple[str, ...], int]]
"""From arguments, the paths in them that are not known yet (null for now) and a limit of work: what is wrong
whatever these will be, and the work spent."""


class ToolFacts(msgspec.Struct, frozen=True):
    """What the check of a plan needs to know about a tool."""

    is_blocking: bool
    digest: str = ""
    """Digest of the tool's definition; an accepted plan pins it."""
    check: ArgumentCheck | None = None
    """Checks arguments by the tool's schema; None where that is not known."""
    may_ask: bool = True
    """Whether calls may need a person by the tool's own risk."""
    returns: dict[str, JsonValue] | None = None
    """JSON Schema of what the tool returns; None where that is not known."""
    is_gated: bool = False
    """Only hosts call it, through the gate."""


class PlannedCall(StoredStruct):
    tool_name: str
    arguments: dict[str, JsonValue]
    """May contain bindings; see `planwarden.agent.core.binding.bindings`."""


class PlanStep(StoredStruct):
    step_id: str
    description: str
    step_type: StepType
    required_tools: tuple[str, ...] = ()
    """Tools that must each have a recorded, successful result before the step counts as completed."""
    expected_outcome: str | None = None
    tool_validation_mode: ValidationMode = "strict"
    dependencies: tuple[str, ...] = ()
    """Every step that must be finished first, references and confirmations included."""
    tool_calls: tuple[PlannedCall, ...] = ()
    confirms: tuple[str, ...] = ()
    on_reject: OnReject = "skip"
    control: StepControl | None = None
    """Conditions, a loop, further attempts; None if there are none of them."""

    @property
    def when(self) -> tuple[Condition, ...]:
        return () if self.control is None else self.control.when

    @property
    def loop(self) -> Loop | None:
        return None if self.control is None else self.control.loop

    @property
    def retry(self) -> RetryPolicy | None:
        return None if self.control is None else self.control.retry

    def list_bindings(self) -> list[Binding]:
        """Return every binding of the step, those of its conditions and its loop included."""
        bindings: list[Binding] = []
        for call in self.tool_calls:
            if not is_plain(call.arguments):
                bindings.extend(find_bindings(call.arguments))
        if self.control is not None:
            for condition in self.control.when:
                bindings.extend(find_bindings(condition.value))
            if self.control.loop is not None:
                bindings.extend(find_bindings(self.control.loop.items))
        return bindings


class Plan(StoredStruct):
    steps: tuple[PlanStep, ...]
    inputs: dict[str, JsonValue] | None = None
    """JSON Schema of what a run is given; None for a plan that is given nothing."""

    def step(self, step_id: str) -> PlanStep:
        return next(step for step in self.steps if step.step_id == step_id)


def list_step_tools(step: PlanStep) -> tuple[str, ...]:
    """Return the names of the tools that the step requires or calls, each once."""
    return tuple(dict.fromkeys([*step.required_tools, *[call.tool_name for call in step.tool_calls]]))


def list_own_names(plan: Plan, step: PlanStep | None = None) -> set[str]:
    """Return what bindings can name in addition to steps: in the step, or anywhere in the plan without one."""
    names = set[str]() if plan.inputs is None else {INPUTS}
    if step.loop is not None if step is not None else any(other.loop is not None for other in plan.steps):
        names |= {ITEM, ITEM_INDEX}
    return names


def list_earlier_results(plan: Plan, earlier: Earlier | None) -> tuple[EarlierResult, ...]:
    """Return what the plan takes from earlier executions; it was checked with this `earlier`."""
    if not earlier:
        return ()
    results = (earlier.get(reference) for reference in list_foreign_references(plan))
    return tuple(result for result in results if isinstance(result, EarlierResult))


def list_foreign_references(plan: Plan) -> dict[Reference, str]:
    """Return each binding to a step that the plan does not have, with the step that has it first."""
    own_ids = {step.step_id for step in plan.steps}
    foreign: dict[Reference, str] = {}
    for step in plan.steps:
        references = [binding.reference for binding in step.list_bindings()]
        if outside := [reference for reference in references if reference.step_id not in own_ids]:
            own = list_own_names(plan, step)
            for reference in outside:
                if reference.step_id not in own:
                    foreign.setdefault(reference, step.step_id)
    return foreign


def plan_to_json(plan: Plan) -> dict[str, JsonValue]:
    """Return the plan as JSON without defaults; `parse_plan` turns it into an equal plan."""
    steps = list[JsonValue]([step_to_json(step) for step in plan.steps])
    inputs: dict[str, JsonValue] = {} if plan.inputs is None else {"inputs": plan.inputs}
    return {**inputs, "todoList": steps}


def step_to_json(step: PlanStep) -> dict[str, JsonValue]:
    document: dict[str, JsonValue] = {"id": step.step_id, "description": step.description, "stepType": step.step_type}
    if step.required_tools:
        document["requiredTools"] = list(step.required_tools)
    if step.expected_outcome is not None:
        document["expectedOutcome"] = step.expected_outcome
    if step.tool_validation_mode != "strict":
        document["toolValidationMode"] = step.tool_validation_mode
    document["dependencies"] = list(step.dependencies)
    if step.tool_calls:
        document["toolCalls"] = [{"toolName": call.tool_name, "arguments": call.arguments} for call in step.tool_calls]
    if step.confirms:
        document["confirms"] = list(step.confirms)
    if step.on_reject != "skip":
        document["onReject"] = step.on_reject
    return document | control_to_json(step.control)
