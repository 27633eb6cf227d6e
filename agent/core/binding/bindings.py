"""Bindings as plans write them: `{"$from": STEP, "pointer": POINTER, "parse": "json", "default": VALUE}` for a value.

A binding names a step of the same plan, `inputs`, or within a `forEach` the `item` or its `itemIndex`; else a completed
step of an earlier execution of the same thread. `{"$from": "item", "call": 0}` takes the result of an earlier call of
the same item. What comes from an earlier execution is looked up once, when the plan
is accepted, and is part of the event that accepts it. `{"$text": TEMPLATE, "with": {NAME: BINDING}}` is text with such
values in it, see `planwarden.agent.core.binding.templates`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from planwarden.agent.common.struct import JsonValue, StoredStruct
from planwarden.agent.core.binding.templates import find_template_faults, list_names, read_with

INPUTS, ITEM, ITEM_INDEX = "inputs", "item", "itemIndex"
"""What a binding can name in addition to steps, where the plan has inputs or the step is a loop."""
WHEN = "when"
"""Why a step was skipped whose condition did not hold, instead of the id of another step."""
POINTER = re.compile(r"(/([^~/]|~[01])*)*\Z")
_PART = re.compile(r"[^.\[\]/'\"\s]+")
MAX_QUOTED = 200
_REFERENCE_KEYS = ("$from", "pointer", "parse", "call")
_KEYS = (*_REFERENCE_KEYS, "default")
_CONTAINERS = (dict, list)
"""Only they can have bindings, and most arguments have none of them."""

Path = tuple[str | int, ...]
"""Keys and indexes that lead from arguments to a value in them."""


class Reference(NamedTuple):
    """What a binding takes."""

    step_id: str
    pointer: str = ""
    """RFC 6901; the whole result if empty."""
    parse: str = ""
    """`json` if the result is text with JSON in it."""
    call: int | None = None
    """Counted from 0: an earlier call of the same item of a loop, whose result it takes instead of the item."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the binding as a plan writes it."""
        fields = zip(_REFERENCE_KEYS, self, strict=True)
        return {key: value for key, value in fields if value not in ("", None)}


class EarlierResult(StoredStruct):
    """The value of a binding to a step of an earlier execution of the thread."""

    step_id: str
    execution_id: str
    value: JsonValue = None
    pointer: str = ""
    parse: str = ""

    @property
    def reference(self) -> Reference:
        return Reference(self.step_id, self.pointer, self.parse)


Earlier = Mapping[Reference, EarlierResult | str]
"""What the thread's earlier executions have for each binding, or why it cannot be had, as a sentence."""


class EarlierNeeded(Exception):
    """Not an error: the plan can be checked again when these bindings have been looked up in the thread."""

    def __init__(self, references: frozenset[Reference]) -> None:
        super().__init__(f"{len(references)} binding(s) to earlier executions")
        self.wanted = references


class Binding(NamedTuple):
    """One occurrence of a binding."""

    reference: Reference
    source: dict[str, JsonValue]

    @property
    def has_default(self) -> bool:
        return "default" in self.source


def find_bindings(value: JsonValue) -> Iterator[Binding]:
    """Yield each binding in the value; those of a template as often as its text takes them."""
    if isinstance(value, dict) and "$from" in value:
        yield Binding(read_reference(value), value)
        return
    if isinstance(value, dict) and "$text" in value:
        values = read_with(value)
        for name in list_names(value):
            yield from find_bindings(values.get(name))
        return
    for child in _list_parts(value):
        if isinstance(child, _CONTAINERS):
            yield from find_bindings(child)


def is_plain(value: dict[str, JsonValue]) -> bool:
    """Return whether the object certainly has no bindings: it is none, and nothing in it could hold one."""
    for key, child in value.items():
        if key == "$from" or key == "$text" or isinstance(child, _CONTAINERS):
            return False
    return True


def has_bindings(value: JsonValue) -> bool:
    """Return whether the value takes anything from elsewhere."""
    if isinstance(value, dict) and is_plain(value):
        return False
    return next(find_bindings(value), None) is not None


def find_references(value: JsonValue) -> Iterator[Reference]:
    """Yield what each binding in the value takes."""
    return (binding.reference for binding in find_bindings(value))


def _list_parts(value: JsonValue) -> Iterable[JsonValue]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def read_reference(value: dict[str, JsonValue]) -> Reference:
    """Return what a `$from` object says."""
    call = value.get("call")
    pointer, parse = str(value.get("pointer", "")), str(value.get("parse", ""))
    return Reference(str(value["$from"]), pointer, parse, call if type(call) is int else None)


def find_binding_faults(value: JsonValue) -> Iterator[str]:
    """Yield faults of bindings and templates in the value: unknown keys, wrong types, pointers against RFC 6901."""
    if isinstance(value, dict) and "$from" in value:
        yield from _find_reference_faults(value)
        return
    if isinstance(value, dict) and "$text" in value:
        yield from find_template_faults(value)
        for child in read_with(value).values():
            if isinstance(child, dict) and "$from" in child:
                yield from _find_reference_faults(child)
        return
    for child in _list_parts(value):
        if isinstance(child, _CONTAINERS):
            yield from find_binding_faults(child)


def _find_reference_faults(value: dict[str, JsonValue]) -> Iterator[str]:
    pointer = value.get("pointer", "")
    if unknown := sorted(value.keys() - {*_KEYS}):
        stray = ", ".join(repr(key[:MAX_QUOTED]) for key in unknown[:10])
        path = next((value[key] for key in ("path", "jsonPointer", "field", "key") if key in value), None)
        hint = f"; write 'pointer': '{to_pointer(path)}'" if isinstance(path, str) and "pointer" not in value else ""
        takes = "'$from', 'pointer', 'parse', 'call' and 'default'"
        yield f"a '$from' object has unknown key(s) {stray}; it takes {takes}{hint}"
    if not isinstance(value["$from"], str):
        yield "'$from' must be the id of one step, in text"
    if value.get("parse", "json") != "json":
        text = str(value["parse"])[:MAX_QUOTED]
        yield f"'parse' is {text!r}, but the only value that it takes is \"json\""
    if type(value.get("call", 0)) is not int:
        yield "'call' must be the number of an earlier call of the same item, counted from 0"
    if not isinstance(pointer, str) or not POINTER.match(pointer):
        text = str(pointer)[:MAX_QUOTED]
        yield f"pointer {text!r} is not a JSON pointer (RFC 6901); write {to_pointer(text)!r}"


def to_pointer(path: str) -> str:
    """Return the JSON pointer that a path in another language, such as `$.results[0].url`, was probably meant as."""
    return "".join(f"/{part}" for part in _PART.findall(path.removeprefix("$")))


def leave_out_bindings(value: JsonValue, bound: list[Path], path: Path = ()) -> JsonValue:
    """Return the value with null in place of each binding and template, and add the paths of those to `bound`."""
    if isinstance(value, dict):
        if "$from" in value or "$text" in value:
            bound.append(path)
            return None
        return {key: leave_out_bindings(child, bound, (*path, key)) for key, child in value.items()}
    if isinstance(value, list):
        return [leave_out_bindings(child, bound, (*path, index)) for index, child in enumerate(value)]
    return value
