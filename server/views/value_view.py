"""A JSON value as a page shows it: complete, escaped, and in lines that no character of the value can fake."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.struct import JsonValue
from planwarden.server.views.escaping import count_hidden_in, escape_text, format_value

OPEN_CHARS = 1_500
"""The page of a question folds longer values and shows their size and hash."""
OPEN_LINES = 40
LINE_CHARS = 72
"""Longer JSON is formatted over several lines."""


@dataclass(frozen=True)
class ValueView:
    """A JSON value for display. A list shows only the short form, so the complete one is built when it is read.

    A text of several lines is shown as lines and every other value as JSON, so a text never looks like a number.
    """

    value: JsonValue

    @property
    def short(self) -> str:
        """The value on one line; a long value is cut and followed by its size and hash."""
        return format_value(self.value)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The complete value; only a line break of the value starts a new line."""
        return tuple(map(escape_text, self._parts))

    @property
    def is_text(self) -> bool:
        return isinstance(self.value, str) and "\n" in self.value

    @property
    def is_long(self) -> bool:
        return sum(map(len, self.lines)) > OPEN_CHARS or len(self.lines) > OPEN_LINES

    @property
    def hidden_count(self) -> int:
        """The number of escaped characters; control characters count too, which JSON escapes by itself."""
        return count_hidden_in(self.value)

    @cached_property
    def _parts(self) -> list[str]:
        if isinstance(self.value, str) and self.is_text:
            return self.value.split("\n")
        whole = json.dumps(self.value, ensure_ascii=False)
        if not isinstance(self.value, str) and len(whole) > LINE_CHARS:
            whole = json.dumps(self.value, ensure_ascii=False, indent=2)
        return whole.split("\n")


class ArgumentChange(msgspec.Struct, frozen=True, kw_only=True):
    """One argument before and after an edit; None if the argument is absent."""

    label: str
    before: ValueView | None
    after: ValueView | None


def find_changes(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> tuple[ArgumentChange, ...]:
    """Return the arguments that differ, in the order of `before`, then new ones in the order of `after`."""
    changes: list[ArgumentChange] = []
    for name in dict.fromkeys([*before, *after]):
        was = ValueView(before[name]) if name in before else None
        becomes = ValueView(after[name]) if name in after else None
        if name in before and name in after and is_same_json(before[name], after[name]):
            continue
        changes.append(ArgumentChange(label=format_name(name), before=was, after=becomes))
    return tuple(changes)


def format_name(name: str) -> str:
    """Return the name, whole and escaped, because the page has no other place to show it."""
    return escape_text(name) or '""'
