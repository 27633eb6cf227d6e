"""Plans: the checked values, and the check that refuses a bad plan before anything happens.

A plan is a list of steps that form a directed acyclic graph. `parse_plan` turns JSON in the form of
`planwarden.agent.core.plan_input` into a `Plan` with every default filled in and every dependency explicit, or raises
`InvalidPlan` with each fault and what is available instead. It does no I/O and receives the facts about tools.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Literal

import msgspec
from pydantic import JsonValue, ValidationError

from planwarden.agent.common.canonical import check_depth, has_json_form
from planwarden.agent.common.errors import InvalidPlan, LimitExceeded
from planwarden.agent.common.form import EXAMPLES, describe, list_pydantic_faults, tidy
from planwarden.agent.common.struct import JsonValue as StoredJson
from planwarden.agent.common.struct import StoredStruct
from planwarden.agent.core.bindings import Earlier, EarlierResult, Reference, find_binding_faults, find_references
from planwarden.agent.core.plan_arguments import (
    ArgumentCheck,
    WrittenCall,
    find_argument_faults,
    find_foreign_faults,
    list_placeholders,
)
from planwarden.agent.core.plan_input import (
    CALL_KEYS,
    ENGINE_KEYS,
    MAX_ID_CHARS,
    MAX_NAME_CHARS,
    MAX_STEPS,
    STEP_KEYS,
    STEPS_KEYS,
    OnReject,
    PlanInput,
    StepInput,
    StepType,
    ValidationMode,
    plan_form,
)

Author = Literal["caller", "model"]

MAX_LISTED = 50
MAX_QUOTED = 10
MAX_TOLD = 20
"""Faults in one message."""
MAX_NAMED = 100_000


class ToolFacts(msgspec.Struct, frozen=True):
    """What the check of a plan needs to know about a tool."""

    is_blocking: bool
    digest: str = ""
    """Digest of the tool's definition; an accepted plan pins it."""
    check: ArgumentCheck | None = None
    """Checks arguments by the tool's schema; None where that is not known."""


class PlannedCall(StoredStruct):
    tool_name: str
    arguments: dict[str, StoredJson]
    """May contain bindings; see `planwarden.agent.core.bindings`."""


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


class Plan(StoredStruct):
    steps: tuple[PlanStep, ...]

    def step(self, step_id: str) -> PlanStep:
        return next(step for step in self.steps if step.step_id == step_id)


def parse_plan(
    document: JsonValue,
    *,
    author: Author,
    tools: Mapping[str, ToolFacts],
    max_steps: int = MAX_STEPS,
    earlier: Earlier | None = None,
    known: Plan | None = None,
) -> tuple[Plan, tuple[str, ...]]:
    """Returns the checked plan, and warnings: what was dropped from a model's plan, and what looks like a placeholder.

    `earlier` has what bindings to other executions of the thread lead to; None if there are none. The arguments of
    steps of the `known` plan are not checked again.

    Raises:
        LimitExceeded: more than `max_steps` steps, or nested too deeply.
        InvalidPlan: anything else; `details.problems` lists every fault, `details.unknownTools` and
            `details.availableTools` are set when a name is wrong.
        EarlierNeeded: bindings that `earlier` does not have.
    """
    check_depth(document)
    document = tidy(document, plan_form())
    entries = _read_steps(document, max_steps)
    if not has_json_form(document):
        raise InvalidPlan(
            "the plan contains NaN, Infinity or a number with thousands of digits, which JSON cannot hold"
        )
    problems: list[str] = []
    warnings: list[str] = []
    for where, unknown, absent, keys in islice(_find_unknown_keys(document, entries), MAX_LISTED):
        if author == "model" and not _have_meaning(unknown, absent):
            warnings.append(f"{where}: dropped unknown key(s) {_quote_some(unknown)}")
        else:
            problems.append(_describe_unknown_keys(where, unknown, keys))
    parsed: list[StepInput] = []
    try:
        parsed = PlanInput.model_validate({"todoList": entries}).todoList
    except ValidationError as error:
        problems.extend(list_pydantic_faults(error, ""))
    problems.extend(
        f"step {entry.id!r} is a tool step without tools; name them in requiredTools, or make their calls in toolCalls"
        for entry in parsed
        if entry.stepType == "tool" and not entry.requiredTools and not entry.toolCalls
    )
    if problems:
        raise InvalidPlan(
            f"the plan has {len(problems)} fault(s): {_join_faults(problems)}",
            details={"problems": list[JsonValue](problems[:MAX_LISTED])},
        )
    steps = _fill_in(parsed)
    _check_graph(steps, _list_foreign_references(steps), earlier)
    begun = {} if known is None else {step.step_id: step for step in known.steps}
    written = _list_calls(step for step in steps if begun.get(step.step_id) != step)
    placeholders = list_placeholders(written)
    if author == "caller":
        # Whoever sends a plan may mean it: a test does run against example.org.
        warnings.extend(f"{found}; it is used as it stands" for found in placeholders[:MAX_TOLD])
        placeholders = []
    _check_tools(steps, written, tools, placeholders)
    return Plan(steps=steps), tuple(warnings)


def list_earlier_results(plan: Plan, earlier: Earlier | None) -> tuple[EarlierResult, ...]:
    """Returns what the plan takes from earlier executions; it was checked with this `earlier`."""
    if not earlier:
        return ()
    found = (earlier.get(reference) for reference in _list_foreign_references(plan.steps))
    return tuple(result for result in found if isinstance(result, EarlierResult))


def _list_foreign_references(steps: tuple[PlanStep, ...]) -> dict[Reference, str]:
    """Returns each binding to a step that the plan does not have, with the step that has it first."""
    own = {step.step_id for step in steps}
    found: dict[Reference, str] = {}
    for call in _list_calls(steps):
        for reference in find_references(call.arguments):
            if reference.step_id not in own:
                found.setdefault(reference, call.step_id)
    return found


def _list_calls(steps: Iterable[PlanStep]) -> list[WrittenCall]:
    return [WrittenCall(step.step_id, call.tool_name, call.arguments) for step in steps for call in step.tool_calls]


def plan_to_json(plan: Plan) -> dict[str, JsonValue]:
    """Returns the plan as JSON without defaults; `parse_plan` turns it into an equal plan."""
    return {"todoList": [_step_to_json(step) for step in plan.steps]}


def _step_to_json(step: PlanStep) -> dict[str, JsonValue]:
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
    return document


def _read_steps(document: JsonValue, max_steps: int) -> list[JsonValue]:
    if not isinstance(document, dict):
        raise InvalidPlan(f"the plan is not an object, but {describe(document)}; send {EXAMPLES['plan']}")
    found = document.get("todoList", document.get("steps"))
    if "todoList" in document and "steps" in document:
        raise InvalidPlan("the plan has both 'todoList' and 'steps'; send one of them")
    if not isinstance(found, list):
        unknown = document.keys() - STEPS_KEYS
        said = (
            _describe_unknown_keys("the plan", unknown, ["todoList"]) if unknown else "the plan has no list 'todoList'"
        )
        raise InvalidPlan(f"{said}; send {EXAMPLES['plan']}")
    if not found:
        raise InvalidPlan(f"the plan has no steps: 'todoList' is empty; send {EXAMPLES['plan']}")
    if len(found) > max_steps:
        raise LimitExceeded(
            f"the plan has {len(found)} steps, the limit is {max_steps}; split the goal or raise [execution] maxSteps",
            details={"steps": len(found), "maxSteps": max_steps},
        )
    return found


def _find_unknown_keys(
    document: JsonValue, entries: list[JsonValue]
) -> Iterator[tuple[str, list[str], list[str], list[str]]]:
    """Yields each place with keys that no field knows, these keys, the keys that it could have, and all it takes."""
    nodes: list[tuple[str, JsonValue, Collection[str]]] = [("plan", document, STEPS_KEYS)]
    for index, entry in enumerate(entries):
        nodes.append((f"todoList[{index}]", entry, STEP_KEYS))
        calls = entry.get("toolCalls") if isinstance(entry, dict) else None
        for number, call in enumerate(calls if isinstance(calls, list) else []):
            nodes.append((f"todoList[{index}].toolCalls[{number}]", call, CALL_KEYS))
    for where, node, known in nodes:
        if isinstance(node, dict) and (unknown := node.keys() - known):
            taken = [key for key in known if key not in ENGINE_KEYS]
            yield where, sorted(unknown), [key for key in taken if key not in node], taken


def _have_meaning(unknown: Iterable[str], absent: Iterable[str]) -> bool:
    """Whether one of the keys was written for one that is absent."""
    # Only what is wrong needs it.
    from planwarden.agent.common.misnomers import find_right_key

    return any(find_right_key(key, absent) for key in islice(unknown, MAX_QUOTED))


def _describe_unknown_keys(where: str, unknown: Iterable[str], known: Collection[str]) -> str:
    from planwarden.agent.common.misnomers import describe_unknown_keys

    return describe_unknown_keys(where, unknown, known)


def _quote_some(names: Iterable[str]) -> str:
    """The first names, quoted and cut: what was sent may have many long ones."""
    return ", ".join(repr(name[:MAX_ID_CHARS]) for name in islice(names, MAX_QUOTED))


def _fill_in(parsed: list[StepInput]) -> tuple[PlanStep, ...]:
    """Returns the steps with every default and dependency explicit."""
    confirmed_by: dict[str, list[str]] = {}
    for entry in parsed:
        for covered in entry.confirms:
            confirmed_by.setdefault(covered, []).append(entry.id)
    steps: list[PlanStep] = []
    ids = {entry.id for entry in parsed}
    for index, entry in enumerate(parsed):
        calls = tuple(PlannedCall(tool_name=call.toolName, arguments=call.arguments) for call in entry.toolCalls)
        required = tuple(dict.fromkeys(entry.requiredTools or [call.tool_name for call in calls]))
        if entry.dependencies is not None:
            declared = entry.dependencies
        else:
            declared = [parsed[index - 1].id] if index else []
        taken = [found.step_id for call in calls for found in find_references(dict(call.arguments))]
        steps.append(
            PlanStep(
                step_id=entry.id,
                description=entry.description,
                step_type="tool" if required else entry.stepType or "reasoning",
                required_tools=required,
                expected_outcome=entry.expectedOutcome,
                tool_validation_mode=entry.toolValidationMode or "strict",
                dependencies=tuple(
                    dict.fromkeys([*declared, *filter(ids.__contains__, taken), *confirmed_by.get(entry.id, [])])
                ),
                tool_calls=calls,
                confirms=tuple(dict.fromkeys(entry.confirms)),
                on_reject=entry.onReject or "skip",
            )
        )
    return tuple(steps)


def _check_graph(steps: tuple[PlanStep, ...], foreign: Mapping[Reference, str], earlier: Earlier | None) -> None:
    ids = [step.step_id for step in steps]
    known = set(ids)
    problems: list[str] = []
    if len(known) != len(ids):
        twice = sorted({step_id for step_id in ids if ids.count(step_id) > 1})
        problems.append(f"duplicate step id(s) {', '.join(map(repr, twice))}")
    for step in steps:
        dangling = [name for name in (*step.dependencies, *step.confirms) if name not in known]
        if dangling:
            names = _quote_some(dict.fromkeys(dangling))
            problems.append(f"step {step.step_id!r} refers to unknown step(s) {names}")
        for call in step.tool_calls:
            faults = find_binding_faults(dict(call.arguments))
            problems.extend(f"step {step.step_id!r}: {fault}" for fault in faults)
    if not problems or earlier is None:
        problems.extend(find_foreign_faults(foreign, earlier))
    if problems:
        raise InvalidPlan(
            f"the plan's steps do not fit together: {_join_faults(problems)}",
            details={
                "problems": list[JsonValue](problems[:MAX_LISTED]),
                "availableSteps": list[JsonValue](ids[:MAX_LISTED]),
            },
        )
    place = {step_id: index for index, step_id in enumerate(ids)}
    if all(place[name] < index for index, step in enumerate(steps) for name in step.dependencies):
        return
    try:
        TopologicalSorter({step.step_id: step.dependencies for step in steps}).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        raise InvalidPlan(
            f"the steps wait for each other in a circle: {' -> '.join(cycle)}",
            details={"problems": ["cycle"], "cycle": list[JsonValue](cycle)},
        ) from None


def _join_faults(problems: list[str]) -> str:
    more = f"; and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
    return "; ".join(problems[:MAX_TOLD]) + more


def _check_tools(
    steps: tuple[PlanStep, ...], written: list[WrittenCall], tools: Mapping[str, ToolFacts], problems: list[str]
) -> None:
    """Raises `InvalidPlan` with the `problems` and what does not fit the tools."""
    unknown: dict[str, list[str]] = {}
    for step in steps:
        named = list_step_tools(step)
        for name in named:
            if name not in tools:
                unknown.setdefault(name[:MAX_NAME_CHARS], []).append(step.step_id)
        if step.confirms and not any(name in tools and tools[name].is_blocking for name in named):
            problems.append(f"step {step.step_id!r} confirms other steps but names no tool that asks a person")
    used = {call.tool_name for call in written if call.tool_name in tools}
    checks = {name: check for name in used if (check := tools[name].check) is not None}
    faults = find_argument_faults(written, checks)
    problems.extend(faults)
    hint = "; get_tool_schemas shows what a tool takes" if faults else ""
    if unknown:
        available = sorted(tools)
        names = ", ".join(
            f"{name!r} (in {', '.join(ids)}{_did_you_mean(name, available)})"
            for name, ids in list(unknown.items())[:10]
        )
        raise InvalidPlan(
            f"the plan names unknown tools: {names}; available: {', '.join(available[:20])}"
            + (f" and {len(available) - 20} more (search_tools finds them)" if len(available) > 20 else "")
            + (f"; besides, {_join_faults(problems)}{hint}" if problems else ""),
            details={
                "unknownTools": list[JsonValue](list(unknown)[:MAX_LISTED]),
                "availableTools": list[JsonValue](available[:MAX_LISTED]),
                **({"problems": list[JsonValue](problems[:MAX_LISTED])} if problems else {}),
            },
        )
    if problems:
        raise InvalidPlan(
            f"nothing of the plan has run: {_join_faults(problems)}{hint}",
            details={"problems": list[JsonValue](problems[:MAX_LISTED])},
        )


def _did_you_mean(name: str, available: list[str]) -> str:
    from planwarden.agent.common.misnomers import find_right_name

    meant = find_right_name(name, available)
    return f"; did you mean {meant!r}?" if meant is not None else ""


def list_step_tools(step: PlanStep) -> tuple[str, ...]:
    """The names of the tools that the step requires or calls, each once."""
    return tuple(dict.fromkeys([*step.required_tools, *(call.tool_name for call in step.tool_calls)]))


def read_tool_names(document: JsonValue) -> frozenset[str]:
    """Returns the names of tools in an unchecked plan; ignores everything else that is wrong with it."""
    steps = document.get("todoList", document.get("steps")) if isinstance(document, dict) else None
    found: set[str] = set()
    for step in steps[:MAX_NAMED] if isinstance(steps, list) else ():
        if isinstance(step, dict):
            required, calls = step.get("requiredTools"), step.get("toolCalls")
            found.update(name for name in (required if isinstance(required, list) else ()) if isinstance(name, str))
            named = (
                call.get("toolName") for call in (calls if isinstance(calls, list) else ()) if isinstance(call, dict)
            )
            found.update(name for name in named if isinstance(name, str))
    return frozenset(found)
