"""Checks the steps of a plan: keys, ids, conditions, loops, calls for the same item, and that they form no circle.

Also limits how many faults of a plan are reported. An unknown key is a fault if a caller wrote the plan, and is dropped
if a model did. Even in a model's plan it is a fault if dropping it would probably change what the plan does.
"""

import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise

from pydantic import JsonValue

from planwarden.agent.common.errors import count_of
from planwarden.agent.common.suggestions import (
    MAX_SHOWN_CHARS,
    describe_foreign_call,
    describe_unknown_keys,
    find_right_key,
)
from planwarden.agent.core.binding.bindings import (
    ITEM,
    WHEN,
    Reference,
    find_binding_faults,
    find_references,
    has_bindings,
)
from planwarden.agent.core.binding.conditions import find_matches_faults
from planwarden.agent.core.binding.pointers import find_list_fault
from planwarden.agent.core.plan.plan import DEFAULT_ITEMS, MAX_ID_CHARS, Author, Plan, PlanStep, list_own_names
from planwarden.agent.core.plan.plan_input import (
    CALL_KEYS,
    CONDITION_KEYS,
    ENGINE_KEYS,
    PLAN_KEYS,
    RETRY_KEYS,
    STEP_KEYS,
    StepInput,
)

MAX_LISTED = 50
"""The most faults in the details of one error."""
MAX_QUOTED = 10
"""The most names in one fault."""
MAX_TOLD = 20
"""The most faults in one message."""
_LOOP_KEYS = ("maxItems", "maxConcurrent", "onItemFailure")
_BINDING = '{"$from": "find", "pointer": "/ids"}'
_ITEM_CALL = json.dumps(Reference(ITEM, "/email", call=0).to_json())
_TOOL = re.compile(r"[\w.-]+")
_IN_CALL = ("tool", "toolName", "action", "function")
"""Keys under which models write the tool of a step's only call."""
_COMPARING = ("const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
"""Keywords of a condition that compare with one value."""
_READ_KEYS = ("dependencies", "toolCalls", "when", "forEach", "retry")
"""Keys whose value is checked even under a wrong key."""
_USE = "use"
_USE_HINT = "; a step cannot contain a saved plan: write its steps here, or start it by itself with run_plan"
_MISSING = re.compile(r"(\S+) needs ('\w+')")


def join_faults(problems: list[str]) -> str:
    """Return the first `MAX_TOLD` faults as one text, followed by the number of the others."""
    more = f"; and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
    return "; ".join(problems[:MAX_TOLD]) + more


def quote_some(names: Iterable[str]) -> str:
    """Return the first `MAX_QUOTED` names, quoted and cut, because the names may be many and long."""
    return ", ".join(repr(name[:MAX_ID_CHARS]) for name in islice(names, MAX_QUOTED))


_UNSEEN = frozenset({"Cc", "Cf", "Cs"})
"""Categories of characters: controls such as NUL, formats such as bidirectional and zero-width characters, surrogates
(https://www.unicode.org/reports/tr36/)."""


def find_id_faults(steps: Sequence[PlanStep]) -> Iterator[str]:
    """Yield a sentence for each id with a control, bidirectional or invisible character."""
    for step in steps:
        if step.step_id.isascii() and step.step_id.isprintable():
            continue
        unseen = [f"U+{ord(letter):04X}" for letter in step.step_id if unicodedata.category(letter) in _UNSEEN]
        if unseen:
            yield f"step id {step.step_id!a} has the control or invisible character {unseen[0]}; rename the step"


def list_look_alikes(steps: Sequence[PlanStep]) -> Iterator[str]:
    """Yield a sentence for each id with variants of usual characters, such as full-width letters."""
    ids = dict.fromkeys(step.step_id for step in steps)
    for step_id in ids:
        usual = step_id if step_id.isascii() else unicodedata.normalize("NFKC", step_id)
        if usual != step_id:
            yield f"step id {step_id!a} looks like {usual!r}" + (", which is another step" if usual in ids else "")


def find_control_faults(entry: StepInput) -> Iterator[str]:
    """Yield what is wrong with the conditions and the loop of a step, one sentence each."""
    for number, condition in enumerate(entry.when):
        faults = [] if "$from" in condition.value else [f"'value' must be a binding, such as {_BINDING}"]
        faults += [*find_binding_faults(condition.value), *find_matches_faults(condition.matches)]
        yield from (f"when[{number}]: {fault}" for fault in faults)
    if entry.forEach is None:
        if stray := [key for key in _LOOP_KEYS if getattr(entry, key) is not None]:
            yield f"{', '.join(stray)} without 'forEach'"
        return
    is_bound = isinstance(entry.forEach, dict) and "$from" in entry.forEach
    if not is_bound and not isinstance(entry.forEach, list):
        yield f"'forEach' must be a list, or a binding to one, such as {_BINDING}"
    yield from (f"forEach: {fault}" for fault in find_binding_faults(entry.forEach))
    most = entry.maxItems or DEFAULT_ITEMS
    if isinstance(entry.forEach, list) and len(entry.forEach) > most:
        yield f"'forEach' has {len(entry.forEach)} items, and 'maxItems' is {most}"
    elif isinstance(entry.forEach, list) and not has_bindings(entry.forEach):
        yield from (f"'forEach' {fault}" for fault in filter(None, [find_list_fault(entry.forEach)]))
    if not entry.toolCalls:
        yield "'forEach' needs 'toolCalls', which are made once for each item"
    tool_names = {call.toolName for call in entry.toolCalls}
    if foreign := [name for name in entry.requiredTools if name not in tool_names]:
        yield f"'requiredTools' of a step with 'forEach' must be in its 'toolCalls': {', '.join(foreign)[:200]}"


def find_item_call_faults(step: PlanStep) -> Iterator[str]:
    """Yield a sentence for each binding of the step that names a `call` whose result it cannot take."""
    outside: list[JsonValue] = [condition.value for condition in step.when]
    if step.loop is not None:
        outside.append(step.loop.items)
    for reference in find_references(outside):
        if reference.call is not None:
            yield f"'call' works only in the arguments of 'toolCalls' of a loop, as in {_ITEM_CALL}"
    for number, planned in enumerate(step.tool_calls):
        for reference in find_references(planned.arguments):
            if reference.call is not None and (fault := _find_item_fault(step, number, reference, reference.call)):
                yield f"toolCalls[{number}]: {fault}"


def _find_item_fault(step: PlanStep, number: int, reference: Reference, call: int) -> str | None:
    if reference.step_id != ITEM:
        step_id = reference.step_id[:64]
        return (
            f"'call' goes with \"item\", not with step {step_id!r}: {_ITEM_CALL} takes an earlier call of the same item"
        )
    if step.loop is None:
        return "'call' takes an earlier call of the same item, and the step has no 'forEach'"
    if number == 0:
        return f"no call comes before it; put the call that finds the value first, and {_ITEM_CALL} into a later one"
    if not 0 <= call < number:
        right = json.dumps(reference._replace(call=number - 1, pointer=reference.pointer[:200]).to_json())
        choice = "0" if number == 1 else f"0 to {number - 1}"
        return f"'call' is {str(call)[:20]}, and an earlier call of the same item is {choice}, counted from 0: {right}"
    return None


def find_reserved_names(plan: Plan) -> list[str]:
    """Return a sentence for each step whose id means something else in this plan, such as `item`."""
    own = list_own_names(plan)
    if any(step.when for step in plan.steps):
        own.add(WHEN)
    reserved = (step.step_id for step in plan.steps if step.step_id in own)
    return [f"step id {step_id!r} means something else in this plan; rename the step" for step_id in reserved]


def find_circle(steps: tuple[PlanStep, ...]) -> list[str]:
    """Return a list with one sentence about steps that wait for each other in a circle; empty if there is no circle."""
    try:
        TopologicalSorter({step.step_id: step.dependencies for step in steps}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return [f"the steps wait for each other in a circle: {' -> '.join(circle)}{_explain_circle(steps, circle)}"]
    return []


def _explain_circle(steps: tuple[PlanStep, ...], circle: list[str]) -> str:
    """Return which binding makes the steps wait for each other, as the end of a sentence; empty text if none does."""
    by_id = {step.step_id: step for step in steps}
    for before, after in pairwise(circle):
        if any(binding.reference.step_id == before for binding in by_id[after].list_bindings()):
            why = "itself" if before == after else f"{before!r}, which runs only after it"
            return f"; step {after!r} takes a value from {why}"
    return ""


def read_misnomers(entry: JsonValue) -> JsonValue:
    """Return a step with wrong keys read as right ones. Only for a refusal: it then names the faults under them too."""
    if not isinstance(entry, dict):
        return entry
    absent = [key for key in _READ_KEYS if key not in entry]
    right_keys = {find_right_key(key, absent): key for key in sorted(entry.keys() - STEP_KEYS)[:MAX_QUOTED]}
    return entry | {right: entry[key] for right, key in right_keys.items() if right is not None}


def check_keys(document: JsonValue, entries: list[JsonValue], author: Author) -> tuple[list[str], list[str]]:
    """Return the faults of a plan's keys, and the warnings about keys that are dropped."""
    problems: list[str] = []
    warnings: list[str] = []
    faulty = (
        (where, node, unknown, [key for key in keys if key not in ENGINE_KEYS])
        for where, node, keys in _list_nodes(document, entries)
        if isinstance(node, dict) and (unknown := sorted(node.keys() - keys))
    )
    for where, node, unknown, keys in islice(faulty, MAX_LISTED):
        if "toolName" in keys and (foreign := describe_foreign_call(where, node)) is not None:
            problems.append(foreign)
            continue
        absent = [key for key in keys if key not in node]
        is_meant = _USE in unknown or any(find_right_key(key, absent) for key in unknown[:MAX_QUOTED])
        if author == "model" and not is_meant:
            warnings.append(f"{where}: dropped {count_of(len(unknown), 'unknown key')}: {quote_some(unknown)}")
            continue
        form = {} if _USE in unknown else _read_right_form(node, unknown, keys)
        hint = "".join(f'; write "{key}": {json.dumps(value)}' for key, value in form.items())
        if 0 < len(hint) <= MAX_SHOWN_CHARS:
            # The form says what these keys would.
            absent = [key for key in absent if key not in (*form, "requiredTools", "description")]
        else:
            hint = _USE_HINT if _USE in unknown else ""
        problems.append(describe_unknown_keys(where, unknown, keys, absent) + hint)
    return problems, warnings


def _read_right_form(
    node: dict[str, JsonValue], unknown: Collection[str], keys: Collection[str]
) -> dict[str, JsonValue]:
    """Return what unknown keys of a step or condition mean, under the right keys; nothing if that is not clear."""
    form: dict[str, JsonValue] = {}
    if "toolCalls" in keys:
        tools = [text for key in _IN_CALL if key in unknown and isinstance(text := node[key], str)]
        arguments = [node[key] for key in unknown if find_right_key(key, ["arguments"]) and isinstance(node[key], dict)]
        if tools and arguments and _TOOL.fullmatch(tools[0]):
            form["toolCalls"] = [{"toolName": tools[0], "arguments": arguments[0]}]
    if "value" in keys and "value" not in node and "$from" in unknown:
        form["value"] = {key: node[key] for key in unknown if key in ("$from", "pointer", "path", "parse", "default")}
    if "matches" in keys and "matches" not in node:
        rights = ((find_right_key(key, _COMPARING), node[key]) for key in unknown)
        # A limit must be a number, and a binding cannot be compared with.
        compared: dict[str, JsonValue] = {
            right: value
            for right, value in rights
            if right and isinstance(value, (str, int, float) if right == "const" else (int, float))
        }
        if compared:
            form["matches"] = compared
    return form


def _list_nodes(document: JsonValue, entries: list[JsonValue]) -> Iterator[tuple[str, JsonValue, tuple[str, ...]]]:
    """Yield each place in the plan with its value and the keys that an object there may have."""
    yield "plan", document, PLAN_KEYS
    for index, entry in enumerate(entries):
        step = f"todoList[{index}]"
        yield step, entry, STEP_KEYS
        if not isinstance(entry := read_misnomers(entry), dict):
            continue
        calls, when = entry.get("toolCalls"), entry.get("when")
        for number, call in enumerate(calls if isinstance(calls, list) else ()):
            yield f"{step}.toolCalls[{number}]", call, CALL_KEYS
        for number, condition in enumerate(when if isinstance(when, list) else (when,) if when else ()):
            yield f"{step}.when[{number}]", condition, CONDITION_KEYS
        if retry := entry.get("retry"):
            yield f"{step}.retry", retry, RETRY_KEYS


def is_reported(fault: str, problems: Iterable[str]) -> bool:
    """Return whether the fault is a missing key that the problems already explain."""
    missing = _MISSING.match(fault)
    if missing is None:
        return False
    where, key = missing.groups()
    starts = (f"{where} has no key ", f"{where} is a call ")
    return any(
        problem.startswith(starts[1])
        or (problem.startswith(starts[0]) and (f"(write {key})" in problem or f'; write "{key[1:-1]}": ' in problem))
        for problem in problems
    )
