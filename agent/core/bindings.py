"""Bindings as plans write them: `{"$from": STEP, "pointer": POINTER, "parse": "json"}` instead of a value.

A binding names a step of the same plan, else a completed step of an earlier execution of the same thread. What comes
from an earlier execution is looked up once, when the plan is accepted, and stands in the event that accepts it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import JsonValue

from planwarden.agent.common.struct import JsonValue as StoredJson
from planwarden.agent.common.struct import StoredStruct

POINTER = re.compile(r"(/([^~/]|~[01])*)*\Z")
MAX_QUOTED = 200
_KEYS = ("$from", "pointer", "parse")

Path = tuple[str | int, ...]
"""Keys and indexes that lead from arguments to a value in them."""


class Reference(NamedTuple):
    """What a binding takes."""

    step_id: str
    pointer: str = ""
    """RFC 6901; the whole result if empty."""
    parse: str = ""
    """`json` if the result is text with JSON in it."""

    def to_json(self) -> dict[str, JsonValue]:
        """The binding as a plan writes it."""
        written = zip(_KEYS, self, strict=True)
        return {key: text for key, text in written if text}


class EarlierResult(StoredStruct):
    """The value of a binding to a step of an earlier execution of the thread."""

    step_id: str
    execution_id: str
    value: StoredJson = None
    pointer: str = ""
    parse: str = ""

    @property
    def reference(self) -> Reference:
        return Reference(self.step_id, self.pointer, self.parse)


Earlier = Mapping[Reference, EarlierResult | str]
"""What the thread's earlier executions have for each binding, or why it cannot be had, as a sentence."""


class EarlierNeeded(Exception):
    """Not an error: the plan can be checked again when these bindings have been looked up in the thread."""

    def __init__(self, wanted: frozenset[Reference]) -> None:
        super().__init__(f"{len(wanted)} binding(s) to earlier executions")
        self.wanted = wanted


def find_references(value: JsonValue) -> Iterator[Reference]:
    """Yields each binding in the value."""
    if isinstance(value, dict):
        if "$from" in value:
            yield read_reference(value)
            return
        for child in value.values():
            yield from find_references(child)
    elif isinstance(value, list):
        for child in value:
            yield from find_references(child)


def read_reference(value: dict[str, JsonValue]) -> Reference:
    """Returns what a `$from` object says."""
    return Reference(str(value["$from"]), str(value.get("pointer", "")), str(value.get("parse", "")))


def find_binding_faults(value: JsonValue) -> Iterator[str]:
    """Yields faults of the `$from` objects in the value: unknown keys, wrong types, pointers against RFC 6901."""
    if isinstance(value, list):
        for child in value:
            yield from find_binding_faults(child)
    elif isinstance(value, dict) and "$from" not in value:
        for child in value.values():
            yield from find_binding_faults(child)
    elif isinstance(value, dict):
        pointer = value.get("pointer", "")
        if unknown := sorted(value.keys() - {*_KEYS}):
            stray = ", ".join(repr(key[:MAX_QUOTED]) for key in unknown[:10])
            yield f"a '$from' object has unknown key(s) {stray}; it takes '$from', 'pointer' and 'parse'"
        if not isinstance(value["$from"], str):
            yield "'$from' must be a step id"
        if value.get("parse", "json") != "json":
            given = str(value["parse"])[:MAX_QUOTED]
            yield f"'parse' is {given!r}, but the only value that it takes is \"json\""
        if not isinstance(pointer, str) or not POINTER.match(pointer):
            given = str(pointer)[:MAX_QUOTED]
            yield f"pointer {given!r} is not a JSON pointer (RFC 6901), such as '/results/0/url'"


def leave_out_bindings(value: JsonValue, bound: list[Path], path: Path = ()) -> JsonValue:
    """Returns the value with null in place of each binding, and adds the paths of those to `bound`."""
    if isinstance(value, dict):
        if "$from" in value:
            bound.append(path)
            return None
        return {key: leave_out_bindings(child, bound, (*path, key)) for key, child in value.items()}
    if isinstance(value, list):
        return [leave_out_bindings(child, bound, (*path, index)) for index, child in enumerate(value)]
    return value
