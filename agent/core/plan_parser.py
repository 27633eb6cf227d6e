"""From JSON to a checked plan: a bad one is refused before anything happens.

`parse_plan` turns JSON in the form of `planwarden.agent.core.plan_input` into a `Plan` with every default filled in and
every dependency explicit, or raises `InvalidPlan` with each fault and what is available instead. It does no I/O and
receives the facts about tools.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import NoReturn, cast

from msgspec.structs import replace
from pydantic import JsonValue, ValidationError

from planwarden.agent.common.canonical import check_depth, has_json_form
from planwarden.agent.common.errors import InvalidPlan, LimitExceeded
from planwarden.agent.common.form import EXAMPLES, describe, list_pydantic_faults
from planwarden.agent.common.misnomers import describe_unknown_keys
from planwarden.agent.core.bindings import Earlier, Reference
from planwarden.agent.core.inputs import find_inputs_faults
from planwarden.agent.core.plan import Author, Plan, PlannedCall, PlanStep, ToolFacts, list_foreign_references
from planwarden.agent.core.plan_checks.arguments import WrittenCall, list_placeholders
from planwarden.agent.core.plan_checks.faults import MAX_LISTED, MAX_TOLD, join_faults, refuse_at_once
from planwarden.agent.core.plan_checks.graph import check_graph, check_order, check_own_names
from planwarden.agent.core.plan_checks.step_ids import check_ids, list_look_alikes
from planwarden.agent.core.plan_checks.tools import check_tools
from planwarden.agent.core.plan_checks.unknown_keys import check_keys
from planwarden.agent.core.plan_input import PLAN_KEYS, PlanInput, StepInput, sent_plan
from planwarden.agent.core.plan_words import MAX_ID_CHARS, MAX_STEPS, SCOPE_SCHEMAS, SCOPES, USE
from planwarden.agent.core.scopes import Needs, Scopes, find_needs, find_schema_faults, find_scope_faults, keep_taken
from planwarden.agent.core.step_control import find_control_faults, read_control
from planwarden.agent.core.used_plans import UsedPlans, map_origins

MAX_NAMED = 100_000
"""Steps of an unchecked plan whose tools are looked for."""


def parse_plan(
    document: JsonValue,
    *,
    author: Author,
    tools: Mapping[str, ToolFacts],
    max_steps: int = MAX_STEPS,
    earlier: Earlier | None = None,
    known: Plan | None = None,
    used: UsedPlans = (),
) -> tuple[Plan, tuple[str, ...]]:
    """Returns the checked plan, and warnings: what was dropped from a model's plan, and what looks like a placeholder.

    What a run is given is checked by `planwarden.agent.core.inputs`; plans in the place of `use` steps are put there
    before, by `planwarden.agent.core.uses`, which says what is `used`: of these steps a model wrote nothing.
    `earlier` has what bindings to other executions of the thread lead to; None if there are none. The arguments of
    steps of the `known` plan are not checked again.

    Raises:
        LimitExceeded: more than `max_steps` steps, or nested too deeply.
        InvalidPlan: anything else; `details.problems` lists every fault, `details.unknownTools` and
            `details.availableTools` are set when a name is wrong.
        EarlierNeeded: bindings that `earlier` does not have.
    """
    check_depth(document)
    sent, document = document, sent_plan().tidy(document)
    entries = _read_steps(document, max_steps)
    if document is not sent and not has_json_form(document):
        raise InvalidPlan(
            "the plan contains NaN, Infinity or a number with thousands of digits, which JSON cannot hold"
        )
    _check_has_no_uses(entries)
    problems, warnings = check_keys(document, entries, author)
    inputs = document.get("inputs") if isinstance(document, dict) else None
    if isinstance(inputs, dict):
        problems.extend(find_inputs_faults(inputs))
    parsed: list[StepInput] = []
    try:
        form = PlanInput.model_validate({"todoList": entries, "inputs": inputs})
        parsed = form.todoList
    except ValidationError as error:
        problems.extend(list_pydantic_faults(error, ""))
    problems.extend(f"step {entry.id!r}: {fault}" for entry in parsed for fault in find_control_faults(entry))
    problems.extend(
        f"step {entry.id!r} is a tool step without tools; name them in requiredTools, or make their calls in toolCalls"
        for entry in parsed
        if entry.stepType == "tool" and not entry.requiredTools and not entry.toolCalls
    )
    if problems:
        usable = parsed or list(_read_usable(entries))
        refuse_at_once(lambda: _refuse(problems), lambda: _check_their_tools(usable, tools))
    scopes = _read_scopes(document, parsed)
    steps, needs = _fill_in(parsed, scopes)
    scopes = keep_taken((binding for step in steps for binding in step.list_bindings()), scopes)
    plan = Plan(
        steps=steps,
        inputs=inputs if isinstance(inputs, dict) else None,
        scopes=scopes or None,
        schemas=_read_schemas(document, scopes) or None,
    )
    begun = {} if known is None else {step.step_id: step for step in known.steps}
    written = _list_calls(step for step in steps if begun.get(step.step_id) != step)
    saved = map_origins(used)
    meant = [call for call in written if author == "caller" or call.step_id in saved]
    # Whoever sends or saves a plan may mean it: a test does run against example.org.
    warnings.extend(f"{found}; it is used as it stands" for found in list_placeholders(meant)[:MAX_TOLD])
    guessed = [] if author == "caller" else [call for call in written if call.step_id not in saved]
    warnings.extend(islice(list_look_alikes(steps), MAX_TOLD))
    refuse_at_once(
        lambda: check_ids(steps),
        lambda: check_own_names(plan),
        lambda: check_graph(steps, list_foreign_references(plan, needs), earlier),
        lambda: check_order(steps),
        lambda: check_tools(steps, written, tools, list_placeholders(guessed)),
    )
    return plan, tuple(warnings)


def _read_steps(document: JsonValue, max_steps: int) -> list[JsonValue]:
    if not isinstance(document, dict):
        raise InvalidPlan(f"the plan is not an object, but {describe(document)}; send {EXAMPLES['plan']}")
    found = document.get("todoList", document.get("steps"))
    if "todoList" in document and "steps" in document:
        raise InvalidPlan("the plan has both 'todoList' and 'steps'; send one of them")
    if not isinstance(found, list):
        unknown = document.keys() - {*PLAN_KEYS}
        said = (
            describe_unknown_keys("the plan", unknown, ["todoList"]) if unknown else "the plan has no list 'todoList'"
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


def _refuse(problems: list[str]) -> NoReturn:
    raise InvalidPlan(
        f"the plan has {len(problems)} fault(s): {join_faults(problems)}",
        details={"problems": list[JsonValue](problems[:MAX_LISTED])},
    )


def _read_usable(entries: list[JsonValue]) -> Iterator[StepInput]:
    """Yield the steps that have the form of one, beside others that do not."""
    for entry in entries:
        with suppress(ValidationError):
            yield StepInput.model_validate(entry)


def _check_their_tools(parsed: list[StepInput], tools: Mapping[str, ToolFacts]) -> None:
    """Raise `InvalidPlan` for what else is wrong with a plan that is refused: how its steps fit the tools."""
    steps, _ = _fill_in(parsed, {})
    check_tools(steps, _list_calls(steps), tools, [])


def _check_has_no_uses(entries: list[JsonValue]) -> None:
    """Raises `InvalidPlan` for a step in whose place nobody put the saved plan that it uses."""
    used = next((entry for entry in entries if isinstance(entry, dict) and entry.get(USE) is not None), None)
    if used is not None:
        text = (
            f"step {str(used.get('id'))[:MAX_ID_CHARS]!r} uses the saved plan {str(used[USE])[:MAX_ID_CHARS]!r}, and "
            "there are no saved plans here"
        )
        raise InvalidPlan(text, details={"problems": [text]})


def _read_scopes(document: JsonValue, parsed: list[StepInput]) -> Scopes:
    """Returns the scopes of a plan. Raises `InvalidPlan`."""
    scopes = document.get(SCOPES) if isinstance(document, dict) else None
    if scopes is None:
        return {}
    if faults := list(islice(find_scope_faults(scopes, {entry.id for entry in parsed}), MAX_LISTED)):
        raise InvalidPlan(join_faults(faults), details={"problems": list[JsonValue](faults)})
    return cast("Scopes", scopes)


def _read_schemas(document: JsonValue, scopes: Scopes) -> dict[str, dict[str, JsonValue]]:
    """Returns the inputs of the plans whose scopes hold bindings. Raises `InvalidPlan`."""
    found = document.get(SCOPE_SCHEMAS) if isinstance(document, dict) else None
    if found is None:
        return {}
    if faults := list(islice(find_schema_faults(found, scopes), MAX_LISTED)):
        raise InvalidPlan(join_faults(faults), details={"problems": list[JsonValue](faults)})
    return {name: schema for name, schema in cast("Scopes", found).items() if name in scopes}


def _fill_in(parsed: list[StepInput], scopes: Scopes) -> tuple[tuple[PlanStep, ...], list[Needs]]:
    """Returns the steps with every default and dependency explicit, and what the bindings of each take."""
    confirmed_by: dict[str, list[str]] = {}
    for entry in parsed:
        for covered in entry.confirms:
            confirmed_by.setdefault(covered, []).append(entry.id)
    steps: list[PlanStep] = []
    ids = {entry.id for entry in parsed}
    needs: list[Needs] = []
    known: dict[Reference, Needs] = {}
    for index, entry in enumerate(parsed):
        calls = tuple([PlannedCall(tool_name=call.toolName, arguments=call.arguments) for call in entry.toolCalls])
        required = tuple(dict.fromkeys(entry.requiredTools or [call.tool_name for call in calls]))
        if entry.dependencies is not None:
            declared = entry.dependencies
        else:
            declared = [parsed[index - 1].id] if index else []
        step = PlanStep(
            step_id=entry.id,
            description=entry.description,
            step_type="tool" if required else entry.stepType or "reasoning",
            required_tools=required,
            expected_outcome=entry.expectedOutcome,
            tool_validation_mode=entry.toolValidationMode or "strict",
            tool_calls=calls,
            confirms=tuple(dict.fromkeys(entry.confirms)),
            on_reject=entry.onReject or "skip",
            control=read_control(entry),
        )
        needs.append(find_needs(step.list_bindings(), scopes, known))
        taken = [reference.step_id for reference in needs[-1] if reference.step_id in ids]
        needed = dict.fromkeys([*declared, *taken, *confirmed_by.get(entry.id, ())])
        steps.append(replace(step, dependencies=tuple(needed)))
    return tuple(steps), needs


def _list_calls(steps: Iterable[PlanStep]) -> list[WrittenCall]:
    return [WrittenCall(step.step_id, call.tool_name, call.arguments) for step in steps for call in step.tool_calls]


def read_tool_names(document: JsonValue) -> frozenset[str]:
    """Returns the names of tools in an unchecked plan; ignores everything else that is wrong with it."""
    steps = document.get("todoList", document.get("steps")) if isinstance(document, dict) else None
    found: list[JsonValue] = []
    for step in steps[:MAX_NAMED] if isinstance(steps, list) else ():
        if isinstance(step, dict):
            required, calls = step.get("requiredTools"), step.get("toolCalls")
            if isinstance(required, list):
                found += required
            if isinstance(calls, list):
                found += [call.get("toolName") for call in calls if isinstance(call, dict)]
    return frozenset([name for name in found if isinstance(name, str)])
