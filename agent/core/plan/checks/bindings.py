"""Finds duplicate step ids, unknown steps, bindings without a value, and bindings in another workflow syntax.

A binding is a fault here only if no run could resolve it. What depends on the run is checked during the run.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from pydantic import JsonValue

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.suggestions import closest_word
from planwarden.agent.core.binding.bindings import (
    INPUTS,
    ITEM,
    ITEM_INDEX,
    Binding,
    Earlier,
    EarlierNeeded,
    EarlierResult,
    Reference,
    find_binding_faults,
    find_bindings,
    find_references,
    find_template_faults,
    to_pointer,
)
from planwarden.agent.core.binding.conditions import find_type_faults, list_compared, list_types
from planwarden.agent.core.plan.checks.steps import MAX_LISTED, MAX_TOLD, find_item_call_faults, quote_some
from planwarden.agent.core.plan.plan import Author, Plan, PlanStep, ToolFacts, list_own_names
from planwarden.agent.core.plan.shapes import Shapes

MAX_BOUND = 1_000
"""The most bindings of one plan to earlier executions."""
MAX_EARLIER_BYTES = 1024 * 1024
"""The most bytes that the values of all bindings of one plan to earlier executions may have together."""
MAX_QUOTED = 100
MAX_TEXT_CHARS = 200
_MARKED = ("$item", "$itemIndex", "$index", "$input", "$inputs", "$step", "$result", "$output", "$var", "$get", "$path")
"""Keys with which other languages refer to a value."""
_SOURCES = ("from", "step", "stepId", "fromStep", "$step", "$ref", "ref")
_POINTERS = ("pointer", "path", "jsonPointer", "field", "parse", "default")
_EXPRESSION = re.compile(
    r"\{\{([^{}]+)\}\}|\$\{([^{}]+)\}|<<([^<>]+)>>|\$from['\"]?\s*[:=]\s*['\"]?(\S+)|\$(?=[A-Za-z])(\S+)"
)
"""Text that consists only of an expression of another language, such as `{{find.id}}`."""
_BARE = re.compile(r"(steps?\.[\w-]+\.(?:results?|outputs?)\b\S*|[\w-]+\.[\w.-]+\[\d+\][\w.\[\]]*)")
"""An unmarked expression such as `find.rows[0].id`. It counts only in a model's plan: a caller may mean the text."""
_PREFIX = re.compile(r"[#/$@.\s]*(?:(?:steps?|results?|outputs?|tasks?|nodes?)[./\[]+['\"]?)?")
_INSTEAD = "the value itself, or let a reasoning step compare the two"
_RESULTS = ("result", "results", "output", "outputs")
"""Names that other languages have for a step's result; a binding leaves them out."""


def find_unresolvable(plan: Plan, steps: Iterable[PlanStep], tools: Mapping[str, ToolFacts]) -> list[str]:
    """Return why bindings and conditions of the steps cannot work in any run, in at most `MAX_LISTED` sentences."""
    shapes = Shapes(plan, tools)
    faults = (f"step {step.step_id!r}: {fault}" for step in steps for fault in _find_step_faults(step, shapes))
    return list(islice(faults, MAX_LISTED))


def _find_step_faults(step: PlanStep, shapes: Shapes) -> Iterator[str]:
    before = [condition.value for condition in step.when]
    if step.loop is not None and isinstance(step.loop.items, dict):
        before.append(step.loop.items)
        kinds = list_types(shapes.find(_read_one(step.loop.items).reference, step).schema or {})
        if kinds and "array" not in kinds:
            yield f"'forEach' needs a list, and {_quote(step.loop.items)} is of type {' or '.join(kinds)}"
    own = {ITEM, ITEM_INDEX} if step.loop is not None else set[str]()
    for binding in find_bindings(list[JsonValue](before)):
        if binding.reference.step_id in own:
            yield (
                f"{_quote(binding.source)} is known in 'toolCalls' only; 'when' and 'forEach' come before the items. "
                'To leave some out, let a reasoning step write JSON: "forEach" takes the list with "parse": "json"'
            )
    # Check the same binding only once, because many calls may contain it.
    different = {(binding.reference, binding.has_default): binding for binding in step.list_bindings()}
    for binding in different.values():
        fault = shapes.find(binding.reference, step).fault
        if fault is not None and not (binding.has_default and fault.startswith("leads to nothing")):
            yield f"the pointer of {_quote(binding.source)} {fault}"
    for number, condition in enumerate(step.when):
        binding = _read_one(condition.value)
        # If the step that the binding names is skipped, the default replaces its result, and the default may match.
        schema = None if binding.has_default else shapes.find(binding.reference, step).schema
        for fault in find_type_faults(condition.matches, schema) if schema is not None else ():
            yield f"when[{number}] never matches: {fault}"


def _read_one(value: dict[str, JsonValue]) -> Binding:
    [binding] = find_bindings(value)
    return binding


def find_foreign_bindings(plan: Plan, steps: Iterable[PlanStep], author: Author) -> dict[str, str]:
    """Return, by step id, a sentence that names expressions of other languages and the bindings to write instead."""
    ids = {step.step_id for step in plan.steps}
    expressions = (_EXPRESSION, _BARE) if author == "model" else (_EXPRESSION,)
    faults: dict[str, str] = {}
    for step in steps:
        values = [value for call in step.tool_calls for value in call.arguments.values()]
        values.extend([] if step.loop is None else [step.loop.items])
        names = ids | list_own_names(plan, step)
        pairs = [*islice(_find_foreign_values(values, names, expressions), MAX_TOLD)]
        compared = [part for condition in step.when for part in list_compared(condition.matches)]
        pairs += ((text, _INSTEAD) for text, _ in islice(_find_foreign_values(compared, names, expressions), MAX_TOLD))
        if sentences := dict.fromkeys(f"{text} takes nothing; write {right}" for text, right in pairs):
            faults[step.step_id] = f"step {step.step_id!r}: {', and '.join(sentences)}"
    return faults


def _find_foreign_values(
    value: JsonValue, names: Collection[str], expressions: Iterable[re.Pattern[str]]
) -> Iterator[tuple[str, str]]:
    """Yield each value that is written in another language, quoted, with the binding that was probably meant."""
    if isinstance(value, list):
        for child in value:
            yield from _find_foreign_values(child, names, expressions)
    elif isinstance(value, str) and _is_binding_as_text(value, names):
        yield _quote(value), "the object itself instead of a text with its JSON"
    elif isinstance(value, str):
        text = value.strip() if len(value) <= MAX_TEXT_CHARS else ""
        match = next(filter(None, (expression.fullmatch(text) for expression in expressions)), None)
        inner = next((part for part in match.groups() if part), None) if match is not None else None
        if inner is not None and (right := suggest_binding(inner, names)) is not None:
            yield _quote(value), right
    elif isinstance(value, dict):
        if (right := _read_foreign(value, names)) is not None:
            yield _quote(value), right
            return
        if "$from" in value:
            return
        for child in value.values():
            yield from _find_foreign_values(child, names, expressions)


def _is_binding_as_text(text: str, names: Collection[str]) -> bool:
    """Return whether the text is the JSON of a binding or template that would have a value in this plan."""
    if not re.match(r"\s*\{\s*\"\$(?:from|text)\"", text):
        return False
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if any(find_binding_faults(value)):
        return False
    bindings = [*find_bindings(value)]
    return bool(bindings) and all(binding.reference.step_id in names for binding in bindings)


def _read_foreign(value: dict[str, JsonValue], names: Collection[str]) -> str | None:
    """Return the binding that an object of another language probably means; None if it may be ordinary data."""
    if value.keys() == {"text", "with"} and not any(
        find_template_faults({"$text": value["text"], "with": value["with"]})
    ):
        return '{"$text": ..., "with": ...}'
    for key in _MARKED:
        if key in value and len(value) == 1:
            text = str(value[key])
            path = f"{key[1:]}.{text}" if key[1:] in names else f"item.{text}" if "item" in key else text
            return suggest_binding(path.removesuffix("."), names)
    keys = [key for key in _SOURCES if key in value]
    if len(keys) != 1 or not isinstance(name := value[keys[0]], str):
        return None
    rest = [key for key in value if key != keys[0]]
    if not all(key in _POINTERS for key in rest) or not (rest or "$" in keys[0]):
        # Ordinary data may have such a key.
        return None
    pointer = next((str(value[key]) for key in ("pointer", "path", "jsonPointer", "field") if key in value), "")
    return suggest_binding(name, names, pointer)


def suggest_binding(text: str, names: Collection[str], pointer: str = "") -> str | None:
    """Return the binding for a path such as `steps.find.result.id`; None if `find` is neither `item` nor in `names`.

    If `names` has no `item`, the text also says where `item` has a value.
    """
    text = text.strip()[:MAX_TEXT_CHARS]
    bare = text[prefix.end() :] if (prefix := _PREFIX.match(text)) is not None else text
    for start in dict.fromkeys((text.lstrip("#/$@."), bare)):
        name = max((name for name in (*names, ITEM) if start.startswith(name)), key=len, default=None)
        rest = None if name is None else start[len(name) :].lstrip("'\"")
        if name is None or rest is None or (rest and rest[0] not in "./[]"):
            continue
        inner = to_pointer(rest)
        head, _, tail = inner.removeprefix("/").partition("/")
        inner = (f"/{tail}" if tail else "") if head in _RESULTS else inner
        right = json.dumps(Reference(name, inner + to_pointer(pointer)).to_json())
        return right if name in names else f"{right} in a step whose 'forEach' is the list of items"
    return None


def find_graph_faults(
    steps: tuple[PlanStep, ...], foreign: Mapping[Reference, str], earlier: Earlier | None, names: Collection[str]
) -> list[str]:
    """Return sentences about unknown and duplicate step ids, and about faulty bindings.

    `foreign` has the bindings to steps outside the plan, and `names` what bindings can name within the plan. Raises
    `EarlierNeeded` if `earlier` lacks some of the foreign bindings, but only if no other fault was found.
    """
    ids = [step.step_id for step in steps]
    unique_ids = set(ids)
    problems: list[str] = []
    malformed: set[str] = set()
    if len(unique_ids) != len(ids):
        twice = sorted({step_id for step_id in ids if ids.count(step_id) > 1})
        problems.append(f"several steps have the id {', '.join(map(repr, twice))}")
    for step in steps:
        dangling = [name for name in (*step.dependencies, *step.confirms) if name not in unique_ids]
        if dangling:
            unknown = quote_some(dict.fromkeys(dangling))
            hint = (
                "" if earlier is None else '; leave out steps of an earlier plan: {"$from": STEP} takes their results'
            )
            problems.append(
                f"step {step.step_id!r} refers to unknown steps: {unknown}; the plan has {quote_some(ids)}{hint}"
            )
        for call in step.tool_calls:
            if faults := list(find_binding_faults(call.arguments)):
                problems.extend(f"step {step.step_id!r}: {fault}" for fault in faults)
                malformed.add(step.step_id)
        problems.extend(f"step {step.step_id!r}: {fault}" for fault in find_item_call_faults(step))
    if not problems or earlier is None:
        readable = {reference: step_id for reference, step_id in foreign.items() if step_id not in malformed}
        calls = (call for step in steps if step.loop is not None for call in step.tool_calls)
        of_items = {reference for call in calls for reference in find_references(call.arguments)}
        problems.extend(_find_foreign_faults(readable, earlier, names, of_items))
    return problems


def _advise(reference: Reference, names: Collection[str], *, of_item: bool) -> str | None:
    """Return what to write instead of a binding to something outside the plan; None if there is no suggestion."""
    if reference.step_id == INPUTS:
        return "to take a value that a run is given, declare it in plan.inputs, the JSON Schema of an object"
    # The loop of another step may have put `item` into `names`, but this reference is outside that loop.
    others = sorted({*names} - {ITEM, ITEM_INDEX})
    if (right := suggest_binding(reference.step_id, others, reference.pointer)) is not None:
        return f"write {right}"
    # Other languages name the entry: `for invoice in invoices`.
    meant = [closest_word(reference.step_id, others), ITEM if of_item else None]
    rights = [json.dumps(reference._replace(step_id=name).to_json()) for name in meant if name is not None]
    return f"write {' or '.join(rights)}" if rights else None


def _find_foreign_faults(
    foreign: Mapping[Reference, str], earlier: Earlier | None, names: Collection[str], of_items: Collection[Reference]
) -> Iterator[str]:
    """Yield why bindings to earlier executions have no value; `names` is what bindings can name within the plan, and
    `of_items` has the bindings in the calls of loops. Only faults that are told get advice, because it takes long.

    Raises:
        EarlierNeeded: some of the bindings were not looked up yet.
    """
    if earlier is None:
        for number, (reference, step_id) in enumerate(foreign.items()):
            fault = f"step {step_id!r} refers to unknown step {reference.step_id[:64]!r}"
            advice = _advise(reference, names, of_item=reference in of_items) if number < MAX_TOLD else None
            yield f"{fault}; {advice or 'to take the result of an earlier execution, run the plan on its thread'}"
        return
    if len(foreign) > MAX_BOUND:
        yield f"the plan takes {len(foreign)} values from earlier executions, the limit is {MAX_BOUND}"
        return
    if missing := foreign.keys() - earlier.keys():
        raise EarlierNeeded(missing)
    results = {reference: earlier[reference] for reference in foreign}
    absent = ((reference, why) for reference, why in results.items() if isinstance(why, str))
    for number, (reference, why) in enumerate(absent):
        advice = _advise(reference, names, of_item=reference in of_items) if number < MAX_TOLD else None
        yield f"step {foreign[reference]!r}: {why}" + (f"; {advice}" if advice is not None else "")
    values = [result.value for result in results.values() if isinstance(result, EarlierResult)]
    if measure_at_least(values, MAX_EARLIER_BYTES) > MAX_EARLIER_BYTES:
        yield (
            f"the values that the plan takes from earlier executions have more than {MAX_EARLIER_BYTES} bytes "
            "together; point to the parts that are needed"
        )


def _quote(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 3] + "..."
