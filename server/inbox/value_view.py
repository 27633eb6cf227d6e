"""A JSON value as a page shows it: complete, escaped, and in lines that no character of the value can fake."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json
from planwarden.server.views.facts import count_hidden, escape_text, format_value

OPEN_CHARS = 1_500
"""The page of a question folds longer values and shows their size and hash."""
OPEN_LINES = 40
LINE_CHARS = 72
"""Longer JSON is formatted over several lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueView:
    """A JSON value for display."""

    short: str
    """The value on one line; a long value is cut and followed by its size and hash."""
    lines: tuple[str, ...]
    """The complete value; only a line break of the value starts a new line."""
    is_text: bool
    is_long: bool
    hidden_count: int
    """The number of escaped characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentChange:
    """One argument before and after an edit; None if the argument is absent."""

    label: str
    before: ValueView | None
    after: ValueView | None


def find_changes(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> tuple[ArgumentChange, ...]:
    """The arguments that differ, in the order of `before`, then new ones in the order of `after`."""
    changes: list[ArgumentChange] = []
    for name in dict.fromkeys([*before, *after]):
        was = build_value_view(before[name]) if name in before else None
        becomes = build_value_view(after[name]) if name in after else None
        if name in before and name in after and canonical_json(before[name]) == canonical_json(after[name]):
            continue
        changes.append(ArgumentChange(label=format_name(name), before=was, after=becomes))
    return tuple(changes)


def build_value_view(value: JsonValue) -> ValueView:
    """Show a text of several lines as lines and every other value as JSON, so a text never looks like a number."""
    is_text = isinstance(value, str) and "\n" in value
    whole = str(value) if is_text else json.dumps(value, ensure_ascii=False)
    if not is_text and not isinstance(value, str) and len(whole) > LINE_CHARS:
        whole = json.dumps(value, ensure_ascii=False, indent=2)
    parts = whole.split("\n")
    lines = tuple(map(escape_text, parts))
    return ValueView(
        short=format_value(value),
        lines=lines,
        is_text=is_text,
        is_long=sum(map(len, lines)) > OPEN_CHARS or len(lines) > OPEN_LINES,
        hidden_count=sum(map(count_hidden, parts)),
    )


def format_name(name: str) -> str:
    """The name, whole and escaped, because the page has no other place to show it."""
    return escape_text(name) or '""'
