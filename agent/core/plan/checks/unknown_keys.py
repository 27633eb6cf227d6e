"""Keys that no field of a plan knows: faults in the plan of a caller, dropped from the plan of a model.

A key without which a step would do something else is a fault in the plan of a model too.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from pydantic import JsonValue

from planwarden.agent.common.suggestions import describe_foreign_call, describe_unknown_keys, find_right_key
from planwarden.agent.core.plan.checks.faults import MAX_LISTED, MAX_QUOTED, quote_some
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
_USE_HINT = "; no step contains a saved plan: write its steps here, or start it by itself with run_plan"

_MISSING = re.compile(r"(\S+) has no ('\w+')")
_Known = tuple[tuple[str, ...], frozenset[str]]
"""Keys that fields know, in their order and as a set."""


def _know(keys: tuple[str, ...]) -> _Known:
    return keys, frozenset(keys)


_PLAN, _STEP, _CALL = _know(PLAN_KEYS), _know(STEP_KEYS), _know(CALL_KEYS)
_CONDITION, _RETRY = _know(CONDITION_KEYS), _know(RETRY_KEYS)


def check_keys(document: JsonValue, entries: list[JsonValue], author: Author) -> tuple[list[str], list[str]]:
    """Return the faults of a plan's keys, and the warnings about keys that were dropped."""
    problems: list[str] = []
    warnings: list[str] = []
    for where, node, unknown, absent, keys in islice(_find_unknown_keys(document, entries), MAX_LISTED):
        if "toolName" in keys and (foreign := describe_foreign_call(where, node)) is not None:
            problems.append(foreign)
        elif author == "model" and not _have_meaning(unknown, absent):
            warnings.append(f"{where}: dropped unknown key(s) {quote_some(unknown)}")
        else:
            problems.append(describe_unknown_keys(where, unknown, keys) + (_USE_HINT if _USE in unknown else ""))
    return problems, warnings


def _find_unknown_keys(
    document: JsonValue, entries: list[JsonValue]
) -> Iterator[tuple[str, dict[str, JsonValue], list[str], list[str], list[str]]]:
    """Yield each place with keys that no field knows: its value, these keys, those it lacks, all it takes."""
    for where, numbers, node, (keys, known_keys) in _list_nodes(document, entries):
        if isinstance(node, dict) and not known_keys.issuperset(node):
            own_keys = [key for key in keys if key not in ENGINE_KEYS]
            absent = [key for key in own_keys if key not in node]
            yield where.format(*numbers), node, sorted(node.keys() - known_keys), absent, own_keys


def _list_nodes(
    document: JsonValue, entries: list[JsonValue]
) -> Iterator[tuple[str, tuple[int, ...], JsonValue, _Known]]:
    """Yield the pattern of each place and the numbers in it, its value, and the keys that it may have."""
    yield "plan", (), document, _PLAN
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            continue
        yield "todoList[{}]", (index,), entry, _STEP
        calls, when = entry.get("toolCalls"), entry.get("when")
        for number, call in enumerate(calls if isinstance(calls, list) else ()):
            yield "todoList[{}].toolCalls[{}]", (index, number), call, _CALL
        for number, condition in enumerate(when if isinstance(when, list) else (when,) if when else ()):
            yield "todoList[{}].when[{}]", (index, number), condition, _CONDITION
        if retry := entry.get("retry"):
            yield "todoList[{}].retry", (index,), retry, _RETRY


def is_told(fault: str, problems: Iterable[str]) -> bool:
    """Return whether the problems say already what to write instead of the key that is missing according to the
    fault."""
    missing = _MISSING.match(fault)
    if missing is None:
        return False
    where, key = missing.groups()
    starts = (f"{where} has no key ", f"{where} is a call ")
    return any(
        problem.startswith(starts[1]) or (problem.startswith(starts[0]) and f"(write {key})" in problem)
        for problem in problems
    )


def _have_meaning(unknown: Collection[str], absent: Iterable[str]) -> bool:
    """Return whether one of the keys names a saved plan, or was written for one that is absent."""
    return _USE in unknown or any(find_right_key(key, absent) for key in islice(unknown, MAX_QUOTED))
