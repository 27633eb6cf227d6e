"""A JSON value as a page shows it: whole, escaped, and in lines that nothing in the value can fake."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json
from planwarden.server.views.facts import VALUE_CHARS, count_hidden, escape_text, value_text

OPEN_CHARS = 1_500
"""Longer values are folded on their own page, with size and hash on the fold."""
OPEN_LINES = 40
LINE_CHARS = 72
"""Longer JSON is spread over several lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueView:
    """A JSON value for display."""

    short: str
    """On one line; cut with size and hash when it is long."""
    lines: tuple[str, ...]
    """Whole; a line of the value is a line here, and nothing else starts one."""
    is_text: bool
    is_long: bool
    hidden_count: int
    """Characters that had to be escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentChange:
    """One argument before and after; None for an argument that is not there."""

    label: str
    before: ValueView | None
    after: ValueView | None


def find_changes(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> tuple[ArgumentChange, ...]:
    """The arguments that are not the same, in the order of the tool."""
    found: list[ArgumentChange] = []
    for name in dict.fromkeys([*before, *after]):
        was = build_value_view(before[name]) if name in before else None
        becomes = build_value_view(after[name]) if name in after else None
        if name in before and name in after and canonical_json(before[name]) == canonical_json(after[name]):
            continue
        found.append(ArgumentChange(label=display_name(name), before=was, after=becomes))
    return tuple(found)


def build_value_view(value: JsonValue) -> ValueView:
    """A text of several lines as these lines, anything else as JSON, so that a text is never taken for a number."""
    is_text = isinstance(value, str) and "\n" in value
    whole = str(value) if is_text else json.dumps(value, ensure_ascii=False)
    if not is_text and not isinstance(value, str) and len(whole) > LINE_CHARS:
        whole = json.dumps(value, ensure_ascii=False, indent=2)
    parts = whole.split("\n")
    lines = tuple(map(escape_text, parts))
    return ValueView(
        short=value_text(value),
        lines=lines,
        is_text=is_text,
        is_long=sum(map(len, lines)) > OPEN_CHARS or len(lines) > OPEN_LINES,
        hidden_count=sum(map(count_hidden, parts)),
    )


def display_name(name: str) -> str:
    shown_name = escape_text(name)
    return (shown_name if len(shown_name) <= VALUE_CHARS else value_text(name)) or '""'
