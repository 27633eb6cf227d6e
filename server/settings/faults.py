"""What is wrong in a table of `planwarden.toml`, in words. Imported when msgspec has refused one, which stops there.

A message names the key and what would be right, never the value: it may be a secret.
"""

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields

from planwarden.agent.common.suggestions import did_you_mean

MAX_PATH_CHARS = 200
_KINDS: Mapping[object, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "a table",
}
_LIMITS = {"gt": "more than", "ge": "at least", "le": "at most"}


def list_table_faults(table: object, kind: type[Struct], where: str) -> list[str]:
    """Returns a sentence for each key that is unknown or has a wrong value; otherwise one for the table as a whole.

    `where` is its path.
    """
    if not isinstance(table, dict):
        return [f"{where[:MAX_PATH_CHARS]}: must be a table"]
    known = {entry.name: entry.type for entry in fields(kind)}
    faults: list[str] = []
    for key, value in cast("dict[str, Any]", table).items():
        path = f"{where}.{key}"
        if key in known:
            faults += _list_value_faults(value, known[key], path)
        else:
            faults.append(f"unknown key {path[:MAX_PATH_CHARS]}{did_you_mean(key, [*known])}")
    if not faults:
        try:
            convert(cast("object", table), kind)
        except ValidationError as error:
            faults.append(f"{where}: {error}")
    return faults


def _list_value_faults(value: object, kind: Any, path: str) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return list_table_faults(value, kind, path)
    try:
        convert(value, cast("object", kind))
    except ValidationError:
        entry = _find_entry_kind(kind)
        parts = enumerate(cast("list[Any]", value)) if isinstance(value, list) and entry is not None else ()
        faults = [fault for place, part in parts for fault in _list_value_faults(part, entry, f"{path}[{place}]")]
        return faults or [f"{path[:MAX_PATH_CHARS]}: must be {_describe(kind)}"]
    return []


def _find_entry_kind(kind: Any) -> Any:
    """Returns what the entries of a list are; None for what is no list."""
    match get_origin(kind), get_args(kind):
        case (origin, (base, *_)) if origin in (Union, UnionType, Annotated):
            return _find_entry_kind(base)
        case (origin, (entry,)) if origin is list:
            return entry
        case _:
            return None


def _describe(kind: Any) -> str:
    """Returns what a value of the kind is, in words; of an optional one, what it is where it is written."""
    match get_origin(kind), get_args(kind):
        case (origin, (base, limits)) if origin is Annotated:
            return f"{_describe(base)} ({_describe_limits(limits, 'characters' if base is str else 'entries')})"
        case (origin, (base, *_)) if origin in (Union, UnionType):
            return _describe(base)
        case (origin, choices) if origin is Literal:
            *others, last = map(repr, choices)
            return f"{', '.join(others)} or {last}"
        case (None, _):
            return _KINDS.get(kind, "another kind of value")
        case (origin, _):
            return _KINDS.get(origin, "another kind of value")


def _describe_limits(limits: Meta, counted: str) -> str:
    words = [f"{word} {limit:.12g}" for name, word in _LIMITS.items() if (limit := getattr(limits, name)) is not None]
    if limits.min_length is not None:
        words.append("not empty" if limits.min_length == 1 else f"at least {limits.min_length} {counted}")
    if limits.max_length is not None:
        words.append(f"at most {limits.max_length} {counted}")
    return ", ".join(words)
