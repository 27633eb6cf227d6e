"""Turns JSON into a checked plan, and refuses a bad plan before anything happens.

`parse_plan` turns JSON in the form of `plan_input` into a `Plan` with every default filled in and
every dependency explicit, or raises `InvalidPlan` with each fault and what is available instead. It does no I/O: the
caller passes in the facts about tools.

`PlanIntake` parses a small plan at once. For a large one it raises `ParsingNeeded`: the caller parses the plan in a
thread, and then reads it again with the same list `parsed`, which by then has the plan or its faults.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue, ValidationError

from planwarden.agent.common.canonical import check_depth, digest, exceeds, has_json_form, is_same_json
from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, LimitExceeded, Needed, count_of
from planwarden.agent.common.form import EXAMPLES, describe, list_pydantic_faults
from planwarden.agent.common.suggestions import describe_unknown_keys
from planwarden.agent.core.binding.bindings import (
    INPUTS,
    ITEM,
    ITEM_INDEX,
    Earlier,
    EarlierNeeded,
    EarlierResult,
    Reference,
)
from planwarden.agent.core.binding.conditions import MAX_PATTERNS, has_many_patterns
from planwarden.agent.core.plan.checks.bindings import find_foreign_bindings, find_graph_faults, find_unresolvable
from planwarden.agent.core.plan.checks.steps import (
    MAX_LISTED,
    MAX_TOLD,
    check_keys,
    find_circle,
    find_control_faults,
    find_id_faults,
    find_reserved_names,
    is_reported,
    join_faults,
    list_look_alikes,
    read_misnomers,
)
from planwarden.agent.core.plan.checks.tools import (
    MAX_WARNINGS,
    WrittenCall,
    check_tools,
    describe_absent,
    find_argument_faults,
    find_blind_confirmations,
    find_missing_promises,
    list_placeholders,
)
from planwarden.agent.core.plan.inputs import find_inputs_faults
from planwarden.agent.core.plan.plan import (
    DEFAULT_ITEMS,
    MAX_STEPS,
    Author,
    Condition,
    Loop,
    Plan,
    PlannedCall,
    PlanStep,
    RetryPolicy,
    StepControl,
    ToolFacts,
    list_foreign_references,
    list_own_names,
)
from planwarden.agent.core.plan.plan_input import PLAN_KEYS, PlanInput, StepInput, sent_plan

MAX_NAMED = 100_000
"""The most steps of an unchecked plan in which to look for the names of tools."""
MAX_CONDITION_VALUES, VALUES_PER_STEP, CHARS_PER_VALUE = 2_000, 10, 64
"""The most values of all conditions: in total or, if more, per step; characters per value. 1,000 take up to 50 ms."""
MAX_VALUES, MAX_CHARS = 1_000, 100_000
"""The largest plan, in values and characters, that is parsed without a thread; parsing it takes about 10 ms."""

Parsed = tuple[Plan, tuple[str, ...]]


def parse_plan(
    document: JsonValue,
    *,
    author: Author,
    tools: Mapping[str, ToolFacts] | None,
    unavailable: Mapping[str, str] | None = None,
    max_steps: int = MAX_STEPS,
    earlier: Earlier | None = None,
    earlier_plan: Plan | None = None,
    goal_and_inputs: JsonValue = None,
) -> Parsed:
    """Return the checked plan, and warnings: what was dropped from a model's plan, and what looks like a mistake.

    `core.plan.inputs` checks the inputs of a run. `earlier` has the values of bindings to other executions of the
    thread; None without a thread. If a step is the same in `earlier_plan`, its arguments are not checked again.
    A model may repeat placeholders that occur in `goal_and_inputs`. With `tools` None, nothing that depends on tools
    or on the thread is checked.

    Raises:
        LimitExceeded: more than `max_steps` steps, or nested too deeply.
        InvalidPlan: the plan has any other fault; `details.problems` lists at most `MAX_LISTED` faults. If the plan
            is well-formed but names an unknown tool, `details.unknownTools` and `details.availableTools` are set.
        EarlierNeeded: there are bindings whose values `earlier` lacks.
    """
    check_depth(document)
    document = sent_plan().tidy(document)
    entries = _read_steps(document, max_steps)
    if not has_json_form(document):
        raise InvalidPlan(
            "the plan contains NaN, Infinity or a number with thousands of digits, which JSON cannot hold"
        )
    inputs = document.get("inputs") if isinstance(document, dict) else None
    parsed, problems, warnings = _parse_steps(document, entries, inputs, author)
    is_readable = not problems
    if not is_readable and tools is not None:
        absent = sorted(read_tool_names(document) - tools.keys())[:MAX_TOLD]
        problems.extend(f"there is no tool {describe_absent(name, tools, unavailable or {})}" for name in absent)
    steps = _fill_in(parsed)
    plan = Plan(steps=steps, inputs=inputs if isinstance(inputs, dict) else None)
    earlier_steps = {} if earlier_plan is None else {step.step_id: step for step in earlier_plan.steps}
    fresh = [step for step in steps if not is_same_json(earlier_steps.get(step.step_id), step)]
    calls = [WrittenCall(step.step_id, call.tool_name, call.arguments) for step in fresh for call in step.tool_calls]
    names = {step.step_id for step in steps} | list_own_names(plan)
    misspelt = find_foreign_bindings(plan, fresh, author)
    problems += [*find_id_faults(steps), *find_reserved_names(plan), *misspelt.values()]
    if len(steps) == len(entries):
        # A key that could not be read may have declared the inputs or the loop.
        declared = () if is_readable else (INPUTS, ITEM, ITEM_INDEX)
        foreign = {} if tools is None else list_foreign_references(plan, declared)
        problems += find_graph_faults(steps, foreign, earlier, names)
    if is_readable:
        # A key that could not be read may have named the dependencies.
        problems += find_circle(steps)
    problems = problems or find_unresolvable(plan, fresh, tools or {})
    if tools is None:
        if problems:
            raise _build_error(problems)
        return plan, tuple(warnings)
    exempt = goal_and_inputs if author == "model" else None
    placeholders = list_placeholders([*calls, *_list_literal_loops(fresh)], exempt)
    if author == "caller":
        # A caller may really want such a value: a test can run against example.org.
        warnings.extend(f"{placeholder}; it is used as it is" for placeholder in placeholders[:MAX_TOLD])
        placeholders = []
    # A misspelt binding stays a text or an object, so the type of the argument could look wrong as well.
    literal = [call for call in calls if call.step_id not in misspelt]
    if not is_readable:
        raise _build_error([*problems, *placeholders, *find_argument_faults(literal, tools)])
    check_tools(steps, literal, tools, unavailable or {}, [*problems, *placeholders])
    warnings.extend(islice(list_look_alikes(steps), MAX_TOLD))
    for find_warnings in (find_blind_confirmations, find_missing_promises):
        warnings.extend(islice(find_warnings(steps, tools), MAX_WARNINGS))
    return plan, tuple(warnings)


def _parse_steps(
    document: JsonValue, entries: list[JsonValue], inputs: JsonValue, author: Author
) -> tuple[list[StepInput], list[str], list[str]]:
    """Return the readable steps; the faults of keys, of inputs and of single steps; warnings about dropped keys."""
    problems, warnings = check_keys(document, entries, author)
    read = [*map(read_misnomers, entries[:MAX_LISTED]), *entries[MAX_LISTED:]] if problems else entries
    if isinstance(inputs, dict):
        problems.extend(find_inputs_faults(inputs))
    try:
        parsed = PlanInput.model_validate({"todoList": read, "inputs": inputs}).todoList
    except ValidationError as error:
        problems.extend([fault for fault in list_pydantic_faults(error, "") if not is_reported(fault, problems)])
        pairs = zip(read, entries, strict=True)
        parsed = [step for entry, raw in pairs if (step := _read_step(entry) or _read_step(raw)) is not None]
    most = max(MAX_CONDITION_VALUES, VALUES_PER_STEP * len(parsed))
    conditions: list[JsonValue] = [condition.matches for entry in parsed for condition in entry.when]
    limit = ""
    if exceeds(conditions, most, CHARS_PER_VALUE * most):
        limit = f"{most} values or {CHARS_PER_VALUE * most} characters"
    elif has_many_patterns(conditions):
        limit = f"{MAX_PATTERNS} patterns; one such as '.{{1,1000}}' counts as many"
    if limit:
        problems.append(f"'matches' of all conditions together has more than {limit}")
        return parsed, problems, warnings
    problems.extend(f"step {entry.id!r}: {fault}" for entry in parsed for fault in find_control_faults(entry))
    problems.extend(
        f"step {entry.id!r} is a tool step without tools; name them in requiredTools, or make their calls in toolCalls"
        for entry in parsed
        if entry.stepType == "tool" and not entry.requiredTools and not entry.toolCalls
    )
    return parsed, problems, warnings


_ESSENTIAL = {"id", "description", "requiredTools", "toolCalls", "forEach", "maxItems"}
"""Keys of a step without which another check would find faults that the step does not have."""


def _read_step(entry: JsonValue) -> StepInput | None:
    """Return the step without the fields that cannot be read; None if one of them is essential."""
    if not isinstance(entry, dict):
        return None
    try:
        return StepInput.model_validate(entry)
    except ValidationError as error:
        faulty = {fault["loc"][0] for fault in error.errors(include_input=False)}
    if faulty & _ESSENTIAL:
        return None
    return StepInput.model_validate({key: value for key, value in entry.items() if key not in faulty})


def _build_error(problems: list[str]) -> InvalidPlan:
    return InvalidPlan(
        f"the plan has {count_of(len(problems), 'fault')}: {join_faults(problems)}",
        details={"problems": list[JsonValue](problems[:MAX_LISTED])},
    )


def _read_steps(document: JsonValue, max_steps: int) -> list[JsonValue]:
    if not isinstance(document, dict):
        raise InvalidPlan(f"the plan is not an object, but {describe(document)}; send {EXAMPLES['plan']}")
    steps = document.get("todoList", document.get("steps"))
    if "todoList" in document and "steps" in document:
        raise InvalidPlan("the plan has both 'todoList' and 'steps'; send one of them")
    if not isinstance(steps, list):
        raise InvalidPlan(f"{_explain_no_list(document, steps)}; send {EXAMPLES['plan']}")
    if not steps:
        raise InvalidPlan(f"the plan has no steps: 'todoList' is empty; send {EXAMPLES['plan']}")
    if len(steps) > max_steps:
        raise LimitExceeded(
            f"the plan has {len(steps)} steps, the limit is {max_steps}; split the goal or raise [execution] maxSteps",
            details={"steps": len(steps), "maxSteps": max_steps},
        )
    return steps


def _explain_no_list(document: dict[str, JsonValue], steps: JsonValue) -> str:
    if isinstance(steps, dict):
        return "'todoList' is an object, not a list: each step is an entry, and its name is its 'id'"
    unknown = document.keys() - {*PLAN_KEYS}
    return describe_unknown_keys("the plan", unknown, ["todoList"]) if unknown else "the plan has no list 'todoList'"


def _fill_in(parsed: list[StepInput]) -> tuple[PlanStep, ...]:
    """Return the steps with every default and dependency explicit."""
    confirmed_by: dict[str, list[str]] = {}
    for entry in parsed:
        for covered in entry.confirms:
            confirmed_by.setdefault(covered, []).append(entry.id)
    steps: list[PlanStep] = []
    ids = {entry.id for entry in parsed}
    for index, entry in enumerate(parsed):
        calls = tuple([PlannedCall(tool_name=call.toolName, arguments=call.arguments) for call in entry.toolCalls])
        required = tuple(dict.fromkeys(entry.requiredTools or [call.tool_name for call in calls]))
        step_before = [parsed[index - 1].id] if index else []
        declared = step_before if entry.dependencies is None else entry.dependencies
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
            control=_read_control(entry),
        )
        sources = [step_id for binding in step.list_bindings() if (step_id := binding.reference.step_id) in ids]
        dependencies = dict.fromkeys([*declared, *sources, *confirmed_by.get(entry.id, ())])
        steps.append(replace(step, dependencies=tuple(dependencies)))
    return tuple(steps)


def _read_control(entry: StepInput) -> StepControl | None:
    loop = retry = None
    if entry.forEach is not None:
        loop = Loop(
            items=entry.forEach,
            max_items=entry.maxItems or DEFAULT_ITEMS,
            max_concurrent=entry.maxConcurrent or 1,
            on_item_failure=entry.onItemFailure or "stop",
        )
    if (more := entry.retry) is not None and more.attempts > 1:
        retry = RetryPolicy(attempts=more.attempts, delay_s=more.delayS, factor=more.factor, max_delay_s=more.maxDelayS)
    when = tuple(Condition(value=condition.value, matches=condition.matches) for condition in entry.when)
    return StepControl(when=when, loop=loop, retry=retry) if when or loop or retry else None


def _list_literal_loops(steps: Iterable[PlanStep]) -> list[WrittenCall]:
    """Return the literal lists of loops as if they were calls, because such lists may contain placeholders too."""
    loops = ((step.step_id, step.loop.items) for step in steps if step.loop is not None)
    return [WrittenCall(step_id, "forEach", {"items": items}) for step_id, items in loops if isinstance(items, list)]


def read_tool_names(document: JsonValue) -> frozenset[str]:
    """Return the names of tools in an unchecked plan; ignore any faults that it has."""
    steps = document.get("todoList", document.get("steps")) if isinstance(document, dict) else None
    names: list[JsonValue] = []
    for step in steps[:MAX_NAMED] if isinstance(steps, list) else ():
        if isinstance(step, dict):
            required, calls = step.get("requiredTools"), step.get("toolCalls")
            if isinstance(required, list):
                names += required
            if isinstance(calls, list):
                names += [call.get("toolName") for call in calls if isinstance(call, dict)]
    return frozenset([name for name in names if isinstance(name, str)])


class ParsingNeeded(Needed):
    """The plan is large: call the function in `keys` in a thread, then ask for the plan again."""

    keys: frozenset[Callable[[], None]]


class PlanIntake(msgspec.Struct, frozen=True, kw_only=True):
    """Reads the plans in answers of callers and replies of models, and holds the facts to check them against."""

    tools: Mapping[str, ToolFacts]
    unavailable: Mapping[str, str] = {}
    """By name: why a tool that is missing from `tools` cannot be called now."""
    max_steps: int
    earlier: Earlier | None = None
    """Results of earlier executions, as far as they were looked up."""
    goal_and_inputs: JsonValue = None
    """What the requester of the execution wrote."""
    parsed: list[tuple[object, Parsed | Exception]] = []
    """For each large plan parsed so far: everything that the outcome depends on, and the outcome itself."""

    def read(self, document: JsonValue, *, author: Author, earlier_plan: Plan | None = None) -> Parsed:
        """Return what `parse_plan` returns, and raise what it raises.

        Raises:
            ParsingNeeded: the plan is large and has not been parsed yet.
        """
        parse = partial(
            parse_plan,
            document,
            author=author,
            tools=self.tools,
            unavailable=self.unavailable,
            max_steps=self.max_steps,
            earlier=self.earlier,
            earlier_plan=earlier_plan,
            goal_and_inputs=self.goal_and_inputs,
        )
        if not exceeds(document, MAX_VALUES, MAX_CHARS):
            return parse()
        try:
            document_digest = digest(document, context="plan")
        except (InvalidArguments, RecursionError):
            # The document is not JSON, or nested too deeply, so parsing refuses it at once.
            return parse()
        digests = {name: tool.digest for name, tool in self.tools.items()}
        # A copy, because the caller may add to `earlier`.
        results = None if self.earlier is None else dict(self.earlier)
        request = (document_digest, {**parse.keywords, "tools": digests, "earlier": results})
        outcome = next((outcome for earlier_request, outcome in self.parsed if earlier_request == request), None)
        if outcome is None:
            raise ParsingNeeded({partial(self._remember, request, parse)})
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _remember(self, request: object, parse: Callable[[], Parsed]) -> None:
        try:
            outcome = parse()
        except (InvalidPlan, LimitExceeded, EarlierNeeded) as error:
            outcome = error
        self.parsed.append((request, outcome))

    def list_results(self, plan: Plan, available: Collection[Reference] = ()) -> tuple[EarlierResult, ...]:
        """Return the results that a checked plan takes from earlier executions, except those already `available`."""
        earlier = self.earlier or {}
        results = (earlier.get(reference) for reference in list_foreign_references(plan) if reference not in available)
        return tuple(result for result in results if isinstance(result, EarlierResult))
