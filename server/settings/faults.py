"""Reads tables of settings, and says in words that people understand what is wrong with them.

A message names the key and what would be right, but never the value, which may be a secret.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.suggestions import did_you_mean

MAX_FAULTS = 10
"""The most faults that one message names."""
MAX_PATH_CHARS = 200

Model = TypeVar("Model", bound=BaseModel)
JsonSchema = Mapping[str, Any]
Location = Sequence[str | int]

_KINDS: Mapping[str, str] = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "array": "a list",
    "object": "a table",
}
_LIMITS: Mapping[str, str] = {
    "exclusiveMinimum": "more than {:.12g}",
    "minimum": "at least {:.12g}",
    "maximum": "at most {:.12g}",
    "minLength": "{} or more characters",
    "maxLength": "at most {} characters",
    "minItems": "{} or more entries",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_OF_THE_MESSAGE = ("value_error", "string_pattern_mismatch", "url_parsing")
"""Kinds of faults that the message of pydantic or of a validator explains better than the schema does."""


class Table(BaseModel):
    """A table that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


def read_tables(document: object, model: type[Model], file: str) -> Model:
    """Return the document as an instance of `model`; in messages, the path of each key begins with `file`.

    Raises:
        InvalidArguments: keys are unknown, or values are wrong; the message names up to `MAX_FAULTS` of them.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        schema = model.model_json_schema()
        texts = (_describe_fault(*fault, schema, file) for fault in _list_faults(error, schema))
        raise InvalidArguments("; ".join(islice(dict.fromkeys(texts), MAX_FAULTS))) from None


def _list_faults(error: ValidationError, schema: JsonSchema) -> Iterator[tuple[Location, str, str]]:
    """Yield location, kind and message of each fault; for a union, only faults of the alternative that was meant.

    Pydantic reports faults for every alternative of a union, and puts the alternative's name into their locations.
    """
    faults = [(_leave_out_names(fault["loc"], schema), fault) for fault in error.errors(include_input=False)]
    closer = {location[:length] for location, _ in faults for length in range(len(location))}
    closer |= {location for location, fault in faults if not fault["type"].endswith("_type")}
    for location, fault in faults:
        is_meant = not fault["type"].endswith("_type") or location not in closer
        if is_meant or "anyOf" not in _find_part(schema, location):
            yield location, fault["type"], fault["msg"]


def _leave_out_names(location: Location, schema: JsonSchema) -> tuple[str | int, ...]:
    rest, steps = [*location], list[str | int]()
    while rest:
        steps.append(rest.pop(0))
        if rest and "anyOf" in _find_part(schema, steps):
            rest.pop(0)
    return tuple(steps)


def _describe_fault(location: Location, kind: str, message: str, schema: JsonSchema, file: str) -> str:
    path = _write_path(location, file)
    if kind == "missing":
        return f"{path} is missing"
    keys = list(_find_part(schema, location[:-1]).get("properties", ()))
    is_known = not location or location[-1] in keys
    hint = "" if is_known else did_you_mean(str(location[-1]), keys)
    if kind == "extra_forbidden":
        is_misplaced = len(location) > 1 and location[-1] in schema.get("properties", ()) and not hint
        hint = "; if it is for the whole file, write it above the first line with a [" if is_misplaced else hint
        return f"unknown key {path}{hint}"
    part = _find_part(schema, location)
    if kind in _OF_THE_MESSAGE or part.keys().isdisjoint(("enum", "type", "anyOf")):
        return f"{path}: {message.removeprefix('Value error, ')}"
    if kind == "list_type" and len(location) == 1 and "$ref" in part["items"]:
        hint = f"; begin each entry with the line [[{location[0]}]]"
    return f"{path}: must be {_describe(part)}{hint}"


def _write_path(location: Location, file: str) -> str:
    match location:
        case ("rules", int(index), *rest):
            root, parts = f"rule {index + 1}", rest
        case _:
            root, parts = file, location
    return (root + "".join(map(_write_step, parts))).removeprefix(".")[:MAX_PATH_CHARS]


def _write_step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)}"


def _find_part(schema: JsonSchema, location: Location) -> JsonSchema:
    """Return the schema of the value at that location in the document; an empty schema if none is known."""
    part = schema
    for step in location:
        key = "items" if isinstance(step, int) else "properties"
        part = next((other for other in part.get("anyOf", ()) if key in other), part)
        inner = part.get(key) if isinstance(step, int) else part.get(key, {}).get(step)
        part = _resolve(inner or part.get("additionalProperties") or {}, schema)
    return part


def _resolve(part: JsonSchema, schema: JsonSchema) -> JsonSchema:
    """Return the schema that the part refers to, its alternatives other than null, or else the part itself."""
    if "anyOf" in part:
        others = [_resolve(other, schema) for other in part["anyOf"] if other.get("type") != "null"]
        return others[0] if len(others) == 1 else {"anyOf": others}
    if "$ref" in part:
        return schema["$defs"][part["$ref"].rpartition("/")[2]]
    return part


def _describe(part: JsonSchema) -> str:
    if "anyOf" in part:
        return " or ".join(map(_describe, part["anyOf"]))
    if "enum" in part:
        *others, last = map(repr, part["enum"])
        return f"{', '.join(others)} or {last}"
    limits = ", ".join(words.format(part[name]) for name, words in _LIMITS.items() if name in part)
    return _KINDS[part["type"]] + (f" ({limits})" if limits else "")
