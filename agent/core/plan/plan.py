"""Plans: the data classes of a checked plan, its keywords and limits, and functions that derive facts from it.

A plan is a list of steps that form a directed acyclic graph. `plan_parser` makes one from JSON, with every default
filled in and every dependency explicit.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import msgspec

from planwarden.agent.common.struct import FrozenStruct, JsonValue, StoredStruct
from planwarden.agent.core.binding.bindings import (
    INPUTS,
    ITEM,
    ITEM_INDEX,
    Binding,
    Path,
    Reference,
    find_bindings,
    find_references,
)

StepType = Literal["tool", "reasoning"]
ValidationMode = Literal["strict", "advisory"]
OnReject = Literal["skip", "stop", "continue"]
OnItemFailure = Literal["stop", "continue"]
Author = Literal["caller", "model"]
"""Who wrote a plan."""

MAX_STEPS = 50
MAX_CALLS_PER_STEP = 50
MAX_CONDITIONS = 20
MAX_ID_CHARS = 64
MAX_NAME_CHARS = 128
MAX_TEXT_CHARS = 20_000
DEFAULT_ITEMS = 100
STEPS_KEYS = ("todoList", "steps")
"""The key of the list of steps, and its name in older plans."""

ArgumentCheck = Callable[[dict[str, JsonValue], Collection[Path], int], tuple[tuple[str, ...], int]]
"""Takes arguments, the paths of their values that are not known yet (null for now), and a limit on the work; returns
the faults that remain whatever those values turn out to be, and the work spent."""


class ToolFacts(msgspec.Struct, frozen=True):
    """What planwarden needs to know about a tool in order to check a plan."""

    is_blocking: bool
    digest: str = ""
    """Digest of the tool's definition; an accepted plan pins it."""
    check: ArgumentCheck | None = None
    """A function that checks arguments against the tool's schema; None if the schema is unknown."""
    may_ask: bool = True
    """Whether a person may have to approve calls because of the tool's own risk."""
    returns: dict[str, JsonValue] | None = None
    """JSON Schema of what the tool returns; None where that is not known."""
    is_gated: bool = False
    """Whether only hosts call the tool, through the gate."""
    only_reads: bool = False
    """Whether calls of the tool change nothing."""


class PlannedCall(StoredStruct):
    tool_name: str
    arguments: dict[str, JsonValue]
    """May contain bindings; see `planwarden.agent.core.binding.bindings`."""


class Condition(StoredStruct):
    """A condition that holds if the value exists and matches the schema."""

    value: dict[str, JsonValue]
    """A binding."""
    matches: dict[str, JsonValue]
    """A JSON Schema."""


class Loop(StoredStruct):
    """A loop that makes the calls of its step once for each item."""

    items: JsonValue
    """A binding to a list, or a list."""
    max_items: int = DEFAULT_ITEMS
    max_concurrent: int = 1
    on_item_failure: OnItemFailure = "stop"


class RetryPolicy(StoredStruct):
    """How often, and after what delays, to repeat a call that its tool reports as failed."""

    attempts: int
    """The most attempts in total, including the first."""
    delay_s: float
    """Seconds before the second attempt."""
    factor: float
    """Factor by which each further delay grows."""
    max_delay_s: float

    def find_delay_s(self, attempts: int) -> float:
        """Return the seconds to wait after that many attempts."""
        return min(self.max_delay_s, self.delay_s * self.factor ** (attempts - 1))


class StepControl(StoredStruct):
    when: tuple[Condition, ...] = ()
    """All must hold, else the step is skipped."""
    loop: Loop | None = None
    retry: RetryPolicy | None = None


class PlanStep(StoredStruct):
    step_id: str
    description: str
    step_type: StepType
    required_tools: tuple[str, ...] = ()
    """Tools that must each have a recorded, successful result before the step counts as completed."""
    expected_outcome: str | None = None
    tool_validation_mode: ValidationMode = "strict"
    dependencies: tuple[str, ...] = ()
    """Every step that must finish first, including steps that bindings refer to and steps that confirm this one."""
    tool_calls: tuple[PlannedCall, ...] = ()
    confirms: tuple[str, ...] = ()
    on_reject: OnReject = "skip"
    control: StepControl | None = None
    """The step's conditions, loop and retry policy; None if it has none of them."""

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
        """Return every binding of the step, including those in its conditions and its loop."""
        values: list[JsonValue] = [call.arguments for call in self.tool_calls]
        values += [condition.value for condition in self.when]
        if self.loop is not None:
            values.append(self.loop.items)
        return list(find_bindings(values))


class ItemOrder(FrozenStruct):
    """The waves of a loop: a call takes results only from earlier waves. Each item's calls are numbered from 0."""

    takes: tuple[tuple[int, ...], ...] = ()
    """For each call of an item: the numbers of the earlier calls whose results it takes."""
    ends: tuple[int, ...] = ()
    """For each wave: the number of the first call that comes after it; for the last wave, the count of all calls."""


def find_item_order(calls: Sequence[PlannedCall]) -> ItemOrder:
    """Return the order of the calls that are made for each item."""
    takes: list[tuple[int, ...]] = []
    ends: list[int] = []
    for number, planned in enumerate(calls):
        sources = {reference.call for reference in find_references(planned.arguments) if reference.call is not None}
        takes.append(tuple(sorted(sources)))
        if any(other >= (ends[-1] if ends else 0) for other in sources):
            ends.append(number)
    return ItemOrder(takes=tuple(takes), ends=(*ends, len(calls)))


class Plan(StoredStruct):
    steps: tuple[PlanStep, ...]
    inputs: dict[str, JsonValue] | None = None
    """JSON Schema of the inputs of a run; None for a plan that takes no inputs."""

    def step(self, step_id: str) -> PlanStep:
        return next(step for step in self.steps if step.step_id == step_id)


def list_step_tools(step: PlanStep) -> tuple[str, ...]:
    """Return the names of the tools that the step requires or calls, each once."""
    return tuple(dict.fromkeys([*step.required_tools, *[call.tool_name for call in step.tool_calls]]))


def find_steps_before(steps: Iterable[PlanStep], step_id: str) -> set[str]:
    """Return the ids of all steps that the step depends on, directly or not."""
    needs = {step.step_id: step.dependencies for step in steps}
    before, waiting = set[str](), [*needs[step_id]]
    while waiting:
        if (name := waiting.pop()) not in before:
            before.add(name)
            waiting += needs[name]
    return before


def list_own_names(plan: Plan, step: PlanStep | None = None) -> set[str]:
    """Return the names, other than step ids, that bindings may use in `step` or, if None, anywhere in the plan."""
    names = set[str]() if plan.inputs is None else {INPUTS}
    if any(other.loop is not None for other in (plan.steps if step is None else (step,))):
        names |= {ITEM, ITEM_INDEX}
    return names


def list_foreign_references(plan: Plan, others: Iterable[str] = ()) -> dict[Reference, str]:
    """Return each reference to a step outside the plan, with the id of the first step that contains it.

    `others` are further names that bindings may use.
    """
    own_ids = {step.step_id for step in plan.steps}
    foreign: dict[Reference, str] = {}
    for step in plan.steps:
        own_names = list_own_names(plan, step).union(others)
        for reference in (binding.reference for binding in step.list_bindings()):
            if reference.step_id not in own_ids and reference.step_id not in own_names:
                foreign.setdefault(reference, step.step_id)
    return foreign


def plan_to_json(plan: Plan) -> dict[str, JsonValue]:
    """Return the plan as JSON without defaults; `parse_plan` turns it into an equal plan."""
    steps = list[JsonValue]([step_to_json(step) for step in plan.steps])
    inputs: dict[str, JsonValue] = {} if plan.inputs is None else {"inputs": plan.inputs}
    return {**inputs, "todoList": steps}


_RETRY_KEYS = ("attempts", "delayS", "factor", "maxDelayS")
_ALWAYS_WRITTEN = ("id", "description", "stepType", "dependencies")


def step_to_json(step: PlanStep) -> dict[str, JsonValue]:
    """Return the step as JSON without defaults."""
    document = _write_step(step)
    return {key: value for key, value in document.items() if key in _ALWAYS_WRITTEN or value != _BARE_STEP[key]}


def _write_step(step: PlanStep) -> dict[str, JsonValue]:
    loop, retry = step.loop or Loop(items=None), step.retry
    return {
        "id": step.step_id,
        "description": step.description,
        "stepType": step.step_type,
        "requiredTools": list(step.required_tools),
        "expectedOutcome": step.expected_outcome,
        "toolValidationMode": step.tool_validation_mode,
        "dependencies": list(step.dependencies),
        "toolCalls": [{"toolName": call.tool_name, "arguments": call.arguments} for call in step.tool_calls],
        "confirms": list(step.confirms),
        "onReject": step.on_reject,
        "when": [{"value": condition.value, "matches": condition.matches} for condition in step.when],
        "forEach": loop.items,
        "maxItems": loop.max_items,
        "maxConcurrent": loop.max_concurrent,
        "onItemFailure": loop.on_item_failure,
        "retry": None if retry is None else dict(zip(_RETRY_KEYS, msgspec.structs.astuple(retry), strict=True)),
    }


_BARE_STEP = _write_step(PlanStep(step_id="", description="", step_type="reasoning"))
