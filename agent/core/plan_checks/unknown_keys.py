"""Keys that no field of a plan knows: faults in the plan of a caller, dropped from the plan of a model."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from pydantic import JsonValue

from planwarden.agent.common.misnomers import describe_unknown_keys, find_right_key
from planwarden.agent.core.plan import Author
from planwarden.agent.core.plan_checks.faults import MAX_LISTED, MAX_QUOTED, quote_some
from planwarden.agent.core.plan_input import CALL_KEYS, CONDITION_KEYS, PLAN_KEYS, RETRY_KEYS, STEP_KEYS, UNLISTED_KEYS


def check_keys(document: JsonValue, entries: list[JsonValue], author: Author) -> tuple[list[str], list[str]]:
    """Returns the faults of a plan's keys, and the warnings about keys that were dropped."""
    problems: list[str] = []
    warnings: list[str] = []
    for where, unknown, absent, keys in islice(_find_unknown_keys(document, entries), MAX_LISTED):
        if author == "model" and not _have_meaning(unknown, absent):
            warnings.append(f"{where}: dropped unknown key(s) {quote_some(unknown)}")
        else:
            problems.append(describe_unknown_keys(where, unknown, keys))
    return problems, warnings


def _find_unknown_keys(
    document: JsonValue, entries: list[JsonValue]
) -> Iterator[tuple[str, list[str], list[str], list[str]]]:
    """Yields each place with keys that no field knows, these keys, the keys that it could have, and all it takes."""
    nodes: list[tuple[str, JsonValue, Collection[str]]] = [("plan", document, PLAN_KEYS)]
    for index, entry in enumerate(entries):
        nodes.append((f"todoList[{index}]", entry, STEP_KEYS))
        calls = entry.get("toolCalls") if isinstance(entry, dict) else None
        for number, call in enumerate(calls if isinstance(calls, list) else []):
            nodes.append((f"todoList[{index}].toolCalls[{number}]", call, CALL_KEYS))
        when = entry.get("when") if isinstance(entry, dict) else None
        for number, condition in enumerate(when if isinstance(when, list) else [when]):
            nodes.append((f"todoList[{index}].when[{number}]", condition, CONDITION_KEYS))
        nodes.append((f"todoList[{index}].retry", entry.get("retry") if isinstance(entry, dict) else None, RETRY_KEYS))
    for where, node, known in nodes:
        if isinstance(node, dict) and (unknown := node.keys() - known):
            taken = [key for key in known if key not in UNLISTED_KEYS]
            yield where, sorted(unknown), [key for key in taken if key not in node], taken


def _have_meaning(unknown: Iterable[str], absent: Iterable[str]) -> bool:
    """Whether one of the keys was written for one that is absent."""
    return any(find_right_key(key, absent) for key in islice(unknown, MAX_QUOTED))
