"""Checks a plan for unknown keys: they are faults if a caller wrote the plan, and are dropped if a model did.

Even in a model's plan, an unknown key is a fault if dropping it would probably change what the plan does.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from pydantic import JsonValue

from planwarden.agent.common.errors import count_of
from planwarden.agent.common.suggestions import (
    MAX_SHOWN_CHARS,
    describe_foreign_call,
    describe_unknown_keys,
    find_right_key,
)
from planwarden.agent.core.plan.checks.steps import MAX_LISTED, MAX_QUOTED, quote_some
from planwarden.agent.core.plan.plan import Author
from planwarden.agent.core.plan.plan_input import (
    CALL_KEYS,
    CONDITION_KEYS,
    ENGINE_KEYS,
    PLAN_KEYS,
    RETRY_KEYS,
    STEP_KEYS,
)

_USE = "use"
_USE_HINT = "; a step cannot contain a saved plan: write its steps here, or start it by itself with run_plan"

_MISSING = re.compile(r"(\S+) needs ('\w+')")


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
        else:
            problems.append(describe_unknown_keys(where, unknown, keys) + _show_right_form(node, unknown, keys))
    return problems, warnings


def _show_right_form(node: dict[str, JsonValue], unknown: Collection[str], keys: Collection[str]) -> str:
    """Return how to write what unknown keys mean together, as the end of a sentence; empty if that is not clear."""
    if _USE in unknown:
        return _USE_HINT
    names = [key for key in ("tool", "toolName") if key in unknown and isinstance(node[key], str)]
    arguments = [key for key in unknown if find_right_key(key, ["arguments"]) and isinstance(node[key], dict)]
    if "$from" in unknown and "value" in keys:
        right = f'"value": {json.dumps({key: node[key] for key in unknown})}'
    elif names and arguments and "toolCalls" in keys:
        right = f'"toolCalls": [{json.dumps({"toolName": node[names[0]], "arguments": node[arguments[0]]})}]'
    else:
        return ""
    return f"; write {right}" if len(right) <= MAX_SHOWN_CHARS else ""


def _list_nodes(document: JsonValue, entries: list[JsonValue]) -> Iterator[tuple[str, JsonValue, tuple[str, ...]]]:
    """Yield each place in the plan with its value and the keys that an object there may have."""
    yield "plan", document, PLAN_KEYS
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            continue
        step = f"todoList[{index}]"
        yield step, entry, STEP_KEYS
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
        problem.startswith(starts[1]) or (problem.startswith(starts[0]) and f"(write {key})" in problem)
        for problem in problems
    )
