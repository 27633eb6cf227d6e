"""Conditions: which schemas `when` takes, why a value does not match one, and why no value of a known shape can.

Conditions fail closed: a keyword implies the type that it applies to, and the keys of `properties` must exist. JSON
Schema would accept a value that breaks these rules. Here, it matches neither the schema nor the schema's `not`.
`_build_strict_schema` writes these rules as JSON Schema, so that the library judges even long lists quickly.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, cast

from planwarden.agent.common.errors import LimitExceeded
from planwarden.agent.common.form import describe
from planwarden.agent.common.schema import MAX_FAULTS, MAX_PATTERNS_BYTES, MAX_WORK, Schema, measure_pattern
from planwarden.agent.common.schema_cost import ValueSize, measure_value, walk
from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.suggestions import describe_unknown_keys

MAX_LOOKS = 200
"""The most parts of a value that are looked at to say why the value does not match."""
MAX_PATTERNS = 64
"""The most patterns in all conditions of a plan together: accepting so many takes up to 50 ms, as does judging them."""
MAX_QUOTED = 80
MAX_NAMES = 5
KEYWORDS: Mapping[str, str] = {
    "type": "",
    "const": "",
    "enum": "",
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "multipleOf": "number",
    "minLength": "string",
    "maxLength": "string",
    "pattern": "string",
    "minItems": "array",
    "maxItems": "array",
    "contains": "array",
    "items": "array",
    "required": "object",
    "properties": "object",
    "minProperties": "object",
    "anyOf": "",
    "allOf": "",
    "not": "",
}
"""The keywords that a condition may have, with the type that each implies, if any."""
_NAMES = {
    "number": ("a number", "numbers"),
    "integer": ("a whole number", "numbers"),
    "string": ("text", "text"),
    "array": ("a list", "lists"),
    "object": ("an object", "objects"),
    "boolean": ("true or false", "booleans"),
    "null": ("null", "null"),
}
_WITH_SCHEMAS = ("contains", "items", "required", "properties", "anyOf", "allOf", "not")
"""Keywords that are judged here; the library judges all others."""
_TAKING_KEYS = {"$from", "$text", "$item"}

JsonSchema = Mapping[str, JsonValue]
Verdict = tuple[bool | None, str]
"""Whether a value matches (None if that cannot be judged), and why it does not."""
_MATCHES: Verdict = (True, "")


def find_matches_faults(matches: dict[str, JsonValue]) -> Iterator[str]:
    """Yield what is wrong with the schema of a condition, whatever the value will be."""
    faults = list(islice(_find_keyword_faults(matches, "'matches'"), MAX_FAULTS))
    yield from faults
    try:
        if not faults:
            Schema(matches)
            Schema(_build_strict_schema(matches))
    except ValueError as error:
        yield f"'matches' is not a usable JSON Schema: {error}"


def has_many_patterns(conditions: list[JsonValue]) -> bool:
    """Return whether compiling the patterns in these schemas takes too long; a large pattern counts as several."""
    budget_bytes = MAX_PATTERNS_BYTES
    for node in walk(conditions):
        if isinstance(node, dict) and isinstance(pattern := node.get("pattern"), str):
            try:
                size = measure_pattern(pattern)
            except ValueError:
                # Finding out that a pattern is not usable may take as long as compiling a few.
                size = MAX_PATTERNS_BYTES // 16
            budget_bytes -= max(size, MAX_PATTERNS_BYTES // MAX_PATTERNS)
        if budget_bytes < 0:
            return True
    return False


def _find_keyword_faults(node: JsonSchema, where: str) -> Iterator[str]:
    if unknown := node.keys() - KEYWORDS.keys():
        yield describe_unknown_keys(where, unknown, KEYWORDS)
    for keyword, part in node.items():
        if keyword not in _WITH_SCHEMAS and (binding := _find_binding(part)) is not None:
            yield (
                f"{keyword} of {where} takes a fixed value, and {_quote(binding)} takes one from elsewhere; write the "
                "value itself, or let a reasoning step compare the two"
            )
    kinds = {kind: keyword for keyword in node if (kind := KEYWORDS.get(keyword))}
    schema_type = node.get("type")
    if len(kinds) > 1:
        parts = (f"{keyword} is for {_NAMES[kind][1]}" for kind, keyword in kinds.items())
        yield f"{where} fits no value: {' and '.join(parts)}"
    elif isinstance(schema_type, str) and schema_type in _NAMES:
        yield from (
            f"{where} fits no value: {keyword} is for {_NAMES[kind][1]}, and its type is {schema_type}"
            for kind, keyword in kinds.items()
            if kind != schema_type and (kind, schema_type) != ("number", "integer")
        )
    for path, child in _list_schemas(node):
        if isinstance(child, dict):
            yield from _find_keyword_faults(child, f"{path} of {where}")
        else:
            yield f"{path} of {where} must be a schema in an object, not {describe(child)}"


def _find_binding(value: JsonValue) -> JsonValue:
    """Return the first part of the value that looks like a binding; None if there is none."""
    if isinstance(value, dict) and value.keys() & _TAKING_KEYS:
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((binding for binding in map(_find_binding, parts) if binding is not None), None)


def list_compared(node: JsonSchema) -> Iterator[JsonValue]:
    """Yield each fixed value with which the schema compares whole values."""
    yield from (node[keyword] for keyword in ("const", "enum") if keyword in node)
    for _, child in _list_schemas(node):
        if isinstance(child, dict):
            yield from list_compared(child)


def _list_schemas(node: JsonSchema) -> Iterator[tuple[str, JsonValue]]:
    for keyword in ("contains", "items", "not"):
        if keyword in node:
            yield f"'{keyword}'", node[keyword]
    for keyword in ("anyOf", "allOf"):
        if isinstance(listed := node.get(keyword), list):
            yield from ((f"'{keyword}'", child) for child in listed)
    if isinstance(properties := node.get("properties"), dict):
        yield from ((f"property {name[:MAX_QUOTED]!r}", child) for name, child in properties.items())


def _build_strict_schema(node: JsonSchema, *, excludes: bool = False) -> dict[str, JsonValue]:
    """Return a JSON Schema for exactly the values that match or, with `excludes`, for those that certainly do not."""
    combined, other = ("anyOf", "allOf") if excludes else ("allOf", "anyOf")
    parts: list[JsonValue] = []
    for keyword, part in node.items():
        strict: dict[str, JsonValue] = {"type": kind} if (kind := KEYWORDS[keyword]) else {}
        match keyword:
            case "contains" | "items":
                key = keyword if not excludes else "items" if keyword == "contains" else "contains"
                strict[key] = _build_strict_schema(cast("JsonSchema", part), excludes=excludes)
            case "properties":
                children = cast("Mapping[str, JsonSchema]", part).items()
                properties = {name: _build_strict_schema(child, excludes=excludes) for name, child in children}
                groups = [{name: child} for name, child in properties.items()] if excludes else [properties]
                strict |= _combine_schemas(
                    combined, [{"required": [*group], "properties": {**group}} for group in groups]
                )
            case "anyOf" | "allOf":
                branches = cast("list[JsonSchema]", part)
                strict |= _combine_schemas(
                    combined if keyword == "allOf" else other,
                    [_build_strict_schema(branch, excludes=excludes) for branch in branches],
                )
            case "not":
                strict |= _build_strict_schema(cast("JsonSchema", part), excludes=not excludes)
            case _:
                strict |= {"not": {keyword: part}} if excludes else {keyword: part}
        parts.append(strict)
    return _combine_schemas(combined, parts)


def _combine_schemas(keyword: str, parts: list[JsonValue]) -> dict[str, JsonValue]:
    if not parts:
        return {} if keyword == "allOf" else {"not": {}}
    return {keyword: parts} if parts[1:] else cast("dict[str, JsonValue]", parts[0])


class Matcher:
    """Judges values by the schema of a condition."""

    def __init__(self, matches: dict[str, JsonValue]) -> None:
        self._matches = matches
        self._looks = 0
        self._leaves: dict[tuple[int, str], Schema] = {}
        """The schema of each single keyword, by the identity of its node and the keyword."""

    def find_mismatch(self, value: JsonValue, size: ValueSize | None = None) -> str | None:
        """Return why the value does not match, as a sentence without its full stop; None if it matches.

        Measuring a large value takes longer than judging it, so the caller may pass its `size`.

        Raises:
            LimitExceeded: the value is too large for the schema.
        """
        # An older version of planwarden may have accepted a faulty condition.
        if (fault := next(_find_keyword_faults(self._matches, "'matches'"), None)) is not None:
            return fault
        try:
            size = size or measure_value(value)
            matches, _ = Schema(_build_strict_schema(self._matches)).fits(value, MAX_WORK, size)
        except ValueError as error:
            raise LimitExceeded(f"a condition could not be judged: {error}") from None
        if matches is None:
            raise LimitExceeded("a condition could not be judged: the value is too large for its schema")
        if matches:
            return None
        _, why = self._judge(self._matches, value, "")
        if why and self._looks <= MAX_LOOKS:
            return why
        return f"the value is {_tell(value)}, which does not fit {_quote(self._matches)}"

    def _judge(self, node: JsonSchema, value: JsonValue, path: str) -> Verdict:
        """Return a verdict whose reason tells a person what is wrong, or a meaningless one after `MAX_LOOKS` looks."""
        self._looks += 1
        if self._looks > MAX_LOOKS:
            # Return at once: after this many looks, the caller does not use the verdict.
            return None, ""
        verdicts = [self._judge_leaves(node, value, path)]
        for keyword in _WITH_SCHEMAS:
            if keyword in node and _has_type(value, KEYWORDS[keyword]):
                verdicts.append(self._judge_part(keyword, node[keyword], value, path))
        verdicts.extend(
            (None, f"{_point(path)} is {describe(value)}, and {keyword} is for {_NAMES[kind][1]}")
            for keyword in node
            if (kind := KEYWORDS[keyword]) and not _has_type(value, kind)
        )
        return _combine(verdicts)

    def _judge_part(self, keyword: str, part: Any, value: Any, path: str) -> Verdict:
        match keyword:
            case "contains":
                return self._judge_contains(part, value, path)
            case "items":
                return _combine(self._judge_entries(part, value, path))
            case "required":
                missing = next((name for name in part if name not in value), None)
                return _MATCHES if missing is None else (False, _tell_missing(missing, value, path))
            case "properties":
                return _combine([self._judge_property(name, child, value, path) for name, child in part.items()])
            case "anyOf":
                return _choose([self._judge(branch, value, path) for branch in part])
            case "allOf":
                return _combine([self._judge(branch, value, path) for branch in part])
            case _:
                matches, why = self._judge(part, value, path)
                if matches is None:
                    return None, why
                return (False, f"{_point(path)} is {_tell(value)}, which 'not' excludes") if matches else _MATCHES

    def _judge_entries(self, node: JsonSchema, entries: list[JsonValue], path: str) -> list[Verdict]:
        numbered = enumerate(islice(entries, MAX_LOOKS + 1))
        return [self._judge(node, entry, f"{path}/{index}") for index, entry in numbered]

    def _judge_property(self, name: str, node: JsonSchema, value: Mapping[str, JsonValue], path: str) -> Verdict:
        if name not in value:
            return None, _tell_missing(name, value, path)
        return self._judge(node, value[name], f"{path}/{name[:MAX_QUOTED]}")

    def _judge_leaves(self, node: JsonSchema, value: JsonValue, path: str) -> Verdict:
        """Judge the value by the keywords that are not in `_WITH_SCHEMAS`."""
        for keyword, expected in node.items():
            if keyword in _WITH_SCHEMAS:
                continue
            if (leaf := self._leaves.get((id(node), keyword))) is None:
                leaf = self._leaves[id(node), keyword] = Schema({keyword: expected}, is_known=True)
            if not leaf.is_valid(value):
                return False, f"{_point(path)} is {_tell(value)}, and {keyword} asks for {_quote(expected)}"
        return _MATCHES

    def _judge_contains(self, node: JsonSchema, entries: list[JsonValue], path: str) -> Verdict:
        if not entries:
            return False, f"{_point(path)} is an empty list, and contains asks for an entry"
        matches, why = _choose(self._judge_entries(node, entries, path))
        if matches:
            return _MATCHES
        # If there are many entries, a reader would take the fault of the first one for the fault of all.
        reason = why if len(entries) == 1 or matches is None else f"contains asks for {_quote(node)}"
        return matches, f"no entry of {_point(path)} fits ({len(entries)} in all): {reason}"


def _choose(verdicts: list[Verdict]) -> Verdict:
    """Return one verdict where one match is enough: a match, else a verdict of None, else the first."""
    ordered = (verdict for outcome in (True, None) for verdict in verdicts if verdict[0] is outcome)
    return next(ordered, verdicts[0])


def _combine(verdicts: list[Verdict]) -> Verdict:
    """Return one verdict for all of them: a certain mismatch outweighs a verdict of None."""
    ordered = (verdict for outcome in (False, None) for verdict in verdicts if verdict[0] is outcome)
    return next(ordered, _MATCHES)


def find_type_faults(
    matches: JsonSchema, shape: JsonSchema, path: str = "", *, is_negated: bool = False
) -> Iterator[str]:
    """Yield why no value that fits `shape`, the value's own schema, can match.

    With `is_negated`, which is set inside a `not`, a type or a required name that never occurs is not a fault.
    """
    kinds, wanted_types = list_types(shape), list_types(matches)
    for keyword in matches:
        kind = KEYWORDS.get(keyword)
        if kind and kinds and not _overlap(kinds, (kind,)):
            yield f"{_point(path)} is {_name_types(kinds)}, and {keyword} is for {_NAMES[kind][1]}"
    if kinds and wanted_types and not is_negated and not _overlap(kinds, wanted_types):
        yield f"{_point(path)} is {_name_types(kinds)}, never {_quote(matches['type'])}"
    wanted_properties, shape_properties = read_properties(matches), read_properties(shape)
    if is_closed(shape):
        required = list(map(str, _read_list(None if is_negated else matches.get("required"))))
        for name in dict.fromkeys([*wanted_properties, *required]):
            if name not in shape_properties:
                yield f"{_point(path)} never has {name[:MAX_QUOTED]!r}; it has {_list_names(shape_properties)}"
    parts = [(child, shape_properties.get(name), f"{path}/{name}") for name, child in wanted_properties.items()]
    parts += [(matches.get(keyword), shape.get("items"), f"{path}/0") for keyword in ("contains", "items")]
    excluded = matches.get("not")
    parts += [(child, cast("JsonValue", shape), path) for child in (excluded, *_read_list(matches.get("allOf")))]
    for child, part, child_path in parts:
        if isinstance(child, dict) and isinstance(part, dict):
            yield from find_type_faults(child, part, child_path, is_negated=is_negated or child is excluded)
    choices = [child for child in _read_list(matches.get("anyOf")) if isinstance(child, dict)]
    branches = [next(find_type_faults(child, shape, path, is_negated=is_negated), None) for child in choices]
    if branches and all(branches):
        yield str(branches[0])


def _overlap(kinds: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Return whether one value can have a type from both: a whole number is also a number."""
    both = {"integer", "number"}
    return bool({*kinds} & {*others}) or bool(both & {*kinds} and both & {*others})


def _name_types(kinds: tuple[str, ...]) -> str:
    return " or ".join(_NAMES[kind][0] for kind in kinds)


def list_types(schema: JsonSchema) -> tuple[str, ...]:
    """Return the types that a schema's own `type` names; none if it has no `type`."""
    schema_type = schema.get("type")
    names = schema_type if isinstance(schema_type, list) else [schema_type]
    return tuple(name for name in names if isinstance(name, str) and name in _NAMES)


def is_closed(schema: JsonSchema) -> bool:
    """Return whether objects that fit the schema have only properties that it names."""
    is_listed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return is_listed and list_types(schema) == ("object",)


def _read_list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _has_type(value: JsonValue, kind: str) -> bool:
    types = {"number": (int, float), "string": str, "array": list, "object": dict}
    return not kind or (isinstance(value, types[kind]) and not (kind == "number" and isinstance(value, bool)))


def _point(path: str) -> str:
    return f"the value at {path[:200]!r}" if path else "the value"


def _tell(value: JsonValue) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else describe(value)


def _tell_missing(name: str, value: JsonSchema, path: str) -> str:
    return f"{_point(path)} has no {name[:MAX_QUOTED]!r}; it has {_list_names(value)}"


def _list_names(properties: JsonSchema) -> str:
    more = f" and {len(properties) - MAX_NAMES} more" if len(properties) > MAX_NAMES else ""
    return ", ".join(repr(name[:MAX_QUOTED]) for name in list(properties)[:MAX_NAMES]) + more or "nothing"


def _quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:MAX_QUOTED]
