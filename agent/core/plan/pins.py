"""Builds pins, which identify the tool definitions that a plan was accepted with, and says how two definitions differ.

When a tool changes after somebody relied on it, planwarden asks again and shows the difference. A pin is the beginning
of a definition's digest. Pins are stored without tool names: names and whole digests would take ten times the space.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, repeat

from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.plan.plan import Plan, ToolFacts, list_step_tools
from planwarden.agent.core.tool import ToolDefinition

PIN_CHARS = 32
"""128 bits of a digest."""
DIFFERENCE_CHARS = 360
_EXCERPT_CHARS = 60
_BEFORE_CHARS = 15
_NAMES = 5


def list_tool_names(plan: Plan) -> tuple[str, ...]:
    """Return the names of the tools that the plan requires or calls, each once, sorted."""
    return tuple(sorted({name for step in plan.steps for name in list_step_tools(step)}))


def build_pins(plan: Plan, tools: Mapping[str, ToolFacts]) -> tuple[str, ...]:
    """Return a pin for each tool of `list_tool_names`; empty text for a tool that does not exist."""
    return tuple(tools[name].digest[:PIN_CHARS] if name in tools else "" for name in list_tool_names(plan))


def map_pins(plan: Plan, pins: Iterable[str]) -> dict[str, str]:
    """Map the name of each tool that the plan requires or calls to its pin, or to empty text where there is none."""
    return dict(zip(list_tool_names(plan), chain(pins, repeat("")), strict=False))


def describe_difference(before: ToolDefinition | None, after: ToolDefinition) -> str:
    """Return what changed, on one line of at most `DIFFERENCE_CHARS` characters, with the tool's texts quoted."""
    if before is None:
        return "the earlier definition is no longer known here"
    changes = "; ".join(_list_changes(before, after)) or "it is a different tool with the same description"
    return changes if len(changes) <= DIFFERENCE_CHARS else f"{changes[: DIFFERENCE_CHARS - 3]}..."


def _list_changes(before: ToolDefinition, after: ToolDefinition) -> Iterator[str]:
    for word, old, new in (
        ("risk", before.risk, after.risk),
        ("effect", before.effect, after.effect),
        ("mode", before.execution_mode, after.execution_mode),
        ("source", before.source, after.source),
    ):
        if old != new:
            yield f"{word} {old} is now {new}"
    yield from _list_schema_changes("argument", before.input_schema, after.input_schema)
    if before.output_schema != after.output_schema:
        yield from _list_schema_changes("result field", before.output_schema or {}, after.output_schema or {})
    if before.description != after.description:
        yield f"description {_quote_difference(before.description, after.description)}"
    if before.annotations != after.annotations:
        old, new = before.annotations, after.annotations
        names = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        yield f"annotations changed: {_join_names(names)}"
    if before.capabilities != after.capabilities:
        yield "capabilities changed"


def _list_schema_changes(word: str, before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> Iterator[str]:
    if before == after:
        return
    old, new = read_properties(before), read_properties(after)
    required, required_now = _read_required(before), _read_required(after)
    for text, names in (
        ("added", new.keys() - old.keys()),
        ("removed", old.keys() - new.keys()),
        ("changed", {name for name in old.keys() & new.keys() if old[name] != new[name]}),
        ("now required", required_now - required),
        ("no longer required", required - required_now),
    ):
        if names:
            yield f"{word}s {text}: {_join_names(names)}"
    if old == new and required == required_now:
        yield f"schema of the {word}s changed"


def _read_required(schema: Mapping[str, JsonValue]) -> set[str]:
    required = schema.get("required")
    return {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()


def _join_names(names: Collection[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(json.dumps(name[:40]) for name in sorted(names)[:_NAMES]) + more


def _quote_difference(before: str, after: str) -> str:
    """Return `OLD is now NEW`, with quoted excerpts that begin shortly before the first difference of the texts."""
    position = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    start = max(0, (min(len(before), len(after)) if position is None else position) - _BEFORE_CHARS)
    return f"{_quote_excerpt(before, start)} is now {_quote_excerpt(after, start)}"


def _quote_excerpt(text: str, start: int) -> str:
    head, tail = ("..." if start else ""), ("..." if len(text) > start + _EXCERPT_CHARS else "")
    return json.dumps(f"{head}{text[start : start + _EXCERPT_CHARS]}{tail}")
