"""JSON Schema validation of hostile input: bounded work, linear-time patterns, no fetching, a short list of faults.

The library is `jsonschema-rs`. With `RegexOptions` it uses an engine that cannot backtrack
(https://docs.rs/regex/latest/regex/#untrusted-input), but that can still take as many steps for each byte of text as
the compiled pattern has states. A check runs in native code, during which the whole process waits. So `Schema` refuses
what would take long to compile, and `find_faults` refuses a value if checking it could take more than `MAX_WORK`: see
`planwarden.agent.common.schema_cost`.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, datetime
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.imports import LazyModule
from planwarden.agent.common.schema_cost import (
    MAX_DEPTH,
    SchemaCost,
    Subschema,
    ValueSize,
    find_target,
    measure_value,
    walk,
)
from planwarden.agent.common.struct import JsonValue

# Commands that only read, and servers without work, check nothing and need not load the library.
if TYPE_CHECKING:
    import jsonschema_rs

    from planwarden.agent.common.schema_faults import Path
else:
    jsonschema_rs = LazyModule("jsonschema_rs")

MAX_FAULTS = 20
MAX_WORK = 2_500_000
"""Units of one check: about 50 ms, see `schema_cost`."""
MAX_PATTERN_BYTES = 1024 * 1024
"""The largest size of one compiled pattern; `.{1,1000}` takes that much."""
MAX_PATTERNS_BYTES = 2 * 1024 * 1024
"""The largest size of all compiled patterns of a schema together."""
_PATTERN_SIZES = tuple(1024 * 4**step for step in range(6))
_SIMPLE_UNITS = 2
"""Units for each byte of text under a simple pattern: it has at most 1 KiB, or is in one state at a time."""
_PATTERN_UNITS = 150
"""Units for each byte of text under any other pattern; each KiB of the compiled pattern adds 50."""
CHECK_UNITS = 500
"""Units of the overhead of one check."""
SIZE_UNITS = 5
"""Units of counting one value."""
_FILL_UNITS = 75
"""Units of applying one schema to one value, or of adding one default."""
_LOOK_UNITS = 10
"""Units of looking at one schema, property or value, or at one byte of a default."""
MAX_EXPLAINED_WORK = 2_500
"""The most units of a check that describes every fault: describing takes a thousand times as long as checking."""
_EXPLAINED = 1_000
MAX_EXPLAINED_BYTES = 2_000_000
"""The largest size of the values and constants that descriptions repeat."""
TOO_MUCH_WORK = (
    f"checking it could take more than the {MAX_WORK // 50_000} ms that a check may take: "
    "the value, or the text under a pattern, is too large for its schema"
)

_TYPES: dict[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
"""The names that schemas have for the types of JSON values; all others are numbers."""

_ATOM = r"(?:\\u\{[0-9a-f]+\}|\\.|\[(?:\\.|[^\]\\])*\]|[^]\\[(){}*+?|^$])"
_ONE_STATE = re.compile(
    rf"\^(?:{_ATOM}(?:\{{\d+\}})?)*(?:{_ATOM}(?:[*+?]|\{{\d+,\d*\}}))?\$?|\^\(\?:{_ATOM}*(?:\|{_ATOM}*){{,20}}\)",
    re.DOTALL,
)
"""Patterns that keep the engine in one state, or in one for each of a few alternatives, whatever the text is."""


class Schema:
    """A compiled schema."""

    def __init__(
        self,
        schema: dict[str, JsonValue],
        *,
        is_known: bool = False,
        checks_dates: bool = False,
        has_defaults: bool = True,
    ) -> None:
        """Raise `ValueError` if it is not a JSON Schema, refers to anything outside itself, or costs too much.

        With `is_known`, the caller knows that it is a JSON Schema, so only its first check compiles it. With
        `checks_dates`, which results do without, the formats `date` and `date-time` are checked; no others ever are.
        Without `has_defaults`, `fill_in` and `complete` add none.
        """
        self._checks_dates = checks_dates
        self._schema = schema
        self._pattern_bytes: dict[str, int] = {}
        self._cost = SchemaCost(schema, self._measure_pattern)
        self._has_defaults = has_defaults
        self._defaults = read_defaults(schema) if has_defaults else {}
        if not is_known:
            self._validator = _compile(schema, checks_dates=checks_dates)

    @cached_property
    def _validator(self) -> "jsonschema_rs.Validator":
        return _compile(self._schema, checks_dates=self._checks_dates)

    def fill_in(self, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the arguments with the schema's top-level defaults; the same object if none is missing."""
        if not self._defaults:
            return arguments
        missing = {name: default for name, default in self._defaults.items() if name not in arguments}
        return {**arguments, **missing} if missing else arguments

    @cached_property
    def _has_nested_defaults(self) -> bool:
        nested = (node for node in walk(self._schema) if isinstance(node, dict) and node is not self._schema)
        return self._has_defaults and any(map(read_defaults, nested))

    def complete(self, arguments: dict[str, JsonValue]) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
        """Return the arguments with the schema's defaults, also those of the objects in them, and every fault.

        If the arguments do not fit only because of defaults in their objects, return them without those. Arguments
        that would take too much work to fill in have a fault, so that nothing runs with a default that nobody saw.
        """
        outer = self.fill_in(arguments)
        if not self._has_nested_defaults:
            return outer, self.find_faults(outer)
        try:
            completed = _Filling(self._schema).fill_in(outer, [self._schema])
        except _TooMuchWork:
            return outer, (TOO_MUCH_WORK,)
        assert isinstance(completed, dict)
        fits, _ = self.fits(completed, MAX_WORK)
        if fits is False and self.fits(outer, MAX_WORK)[0]:
            return outer, ()
        return completed, () if fits else self.find_faults(completed)

    def find_faults(self, value: JsonValue) -> tuple[str, ...]:
        """Return a sentence per fault, at most `MAX_FAULTS`; empty if the value fits.

        A value that would take too much work to check has a fault.
        """
        faults, _ = self._check(value, (), MAX_WORK)
        return (TOO_MUCH_WORK,) if faults is None else faults

    def is_valid(self, value: JsonValue) -> bool:
        """Return whether a value fits; the caller has to bound the work."""
        return self._validator.is_valid(value)

    def fits(self, value: JsonValue, limit: int) -> tuple[bool | None, int]:
        """Return whether the value fits, and the most units of work that the check took. The first is None if the
        check would take more than `limit`, or is impossible, as for text that is not Unicode.
        """
        try:
            size = measure_value(value)
        except ValueError:
            return None, CHECK_UNITS
        work = self._estimate(value, size) + _count_other_work(size)
        return (None, limit) if work > limit else (self._validator.is_valid(value), work)

    def find_certain_faults(
        self, value: JsonValue, unknown: "Collection[Path]", limit: int
    ) -> tuple[tuple[str, ...], int]:
        """Return a sentence for each fault that no values of the `unknown` parts could mend, and the work spent.

        The value has null in these parts. If the check takes more work than `limit`, nothing is found.
        """
        faults, work = self._check(value, unknown, limit)
        return faults or (), work

    def _check(self, value: JsonValue, unknown: "Collection[Path]", limit: int) -> tuple[tuple[str, ...] | None, int]:
        """Return what is wrong with the value, and the work spent; None if finding that takes more than `limit`."""
        try:
            size = measure_value(value)
        except ValueError as error:
            return (str(error),), CHECK_UNITS
        work, other = self._estimate(value, size), _count_other_work(size)
        if work + other > limit:
            return None, limit
        if self._validator.is_valid(value):
            return (), work + other
        faults = self._describe_faults(value, size, work, unknown)
        return faults, work + other + _EXPLAINED * min(work, MAX_EXPLAINED_WORK)

    def _estimate(self, value: JsonValue, size: ValueSize) -> int:
        work = self._cost.estimate(size)
        if work > MAX_WORK and isinstance(value, dict):
            work = self._cost.estimate_object({name: measure_value(part) for name, part in value.items()})
        return int(work)

    def _describe_faults(
        self, value: JsonValue, size: ValueSize, work: int, unknown: "Collection[Path]"
    ) -> tuple[str, ...]:
        from planwarden.agent.common.schema_faults import UnknownParts, describe_faults

        size_bytes = size.text + 10 * size.values
        repeated = work * self._cost.constants_bytes + size_bytes * size.depth * self._cost.find_load(size.depth).values
        if work <= MAX_EXPLAINED_WORK and repeated <= MAX_EXPLAINED_BYTES:
            errors = self._validator.iter_errors(value)
        elif faults := self._list_faults_of_keys(value):
            return faults
        elif self._cost.has_branches or size_bytes + self._cost.constants_bytes > MAX_EXPLAINED_BYTES:
            return () if unknown else ("it does not fit its schema, and is too large to say where",)
        else:
            errors = self._find_first_error(value)
        return tuple(islice(describe_faults(errors, UnknownParts(unknown), self._schema), MAX_FAULTS))

    def _find_first_error(self, value: JsonValue) -> "Iterator[jsonschema_rs.ValidationError]":
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            yield error

    def _list_faults_of_keys(self, value: JsonValue) -> tuple[str, ...]:
        faults: list[str] = []
        if isinstance(value, dict):
            required, properties = self._schema.get("required"), self._schema.get("properties")
            missing = [name for name in required if name not in value] if isinstance(required, list) else []
            faults += [f"{str(name)[:100]!r} is a required property" for name in missing]
            if self._schema.get("additionalProperties") is False and isinstance(properties, dict):
                faults += [f"{name[:100]!r} was unexpected" for name in value if name not in properties]
        return tuple(faults[:MAX_FAULTS])

    def _measure_pattern(self, pattern: str) -> float:
        """Return the units for each byte of text under the pattern."""
        size = self._pattern_bytes[pattern] = _measure_pattern(pattern)
        if sum(self._pattern_bytes.values()) > MAX_PATTERNS_BYTES:
            raise ValueError(f"its patterns take more than {MAX_PATTERNS_BYTES} bytes when they are compiled")
        is_simple = size <= _PATTERN_SIZES[0] or _ONE_STATE.fullmatch(pattern)
        return _SIMPLE_UNITS if is_simple else _PATTERN_UNITS + 50 * size / 1024


@lru_cache(maxsize=1024)
def _measure_pattern(pattern: str) -> int:
    """Return the bytes that the compiled pattern takes at most. Raises `ValueError` if it is not usable."""
    for size in _PATTERN_SIZES:
        try:
            _compile({"pattern": pattern}, size)
        except ValueError:
            continue
        return size
    raise ValueError(f"its pattern {pattern[:100]!r} is not supported, or takes more than {MAX_PATTERN_BYTES} bytes")


def _compile(
    schema: dict[str, JsonValue], pattern_bytes: int = MAX_PATTERN_BYTES, *, checks_dates: bool = False
) -> "jsonschema_rs.Validator":
    try:
        return jsonschema_rs.validator_for(
            schema,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=pattern_bytes),
            retriever=_refuse_to_fetch,
            validate_formats=checks_dates,
            formats=_FORMATS,
        )
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"/{part}" for part in error.instance_path)
        raise ValueError(f"{where} in it: {error.message[:200]}") from None


def _pass(text: str) -> bool:
    return True


def _is_date(text: str) -> bool:
    try:
        return len(text) == len("2026-07-31") and bool(date.fromisoformat(text))
    except ValueError:
        return False


def _is_date_time(text: str) -> bool:
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False


_UNCHECKED = (
    "time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference uuid "
    "uri-template json-pointer relative-json-pointer regex"
)
_FORMATS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(_UNCHECKED.split(), _pass),
    "date": _is_date,
    "date-time": _is_date_time,
}


def read_properties(schema: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return the properties that a schema of objects names."""
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def read_defaults(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the defaults that a schema of objects has for its properties."""
    parts = read_properties(schema).items()
    return {name: part["default"] for name, part in parts if isinstance(part, dict) and "default" in part}


class _TooMuchWork(Exception):
    """Filling in the defaults of a value takes more than `MAX_WORK`."""


class _Filling:
    """Fills in the defaults of one value and of all objects in it, with limited work."""

    def __init__(self, root: Subschema) -> None:
        self._root, self._work_left = root, MAX_WORK
        self._applied: dict[tuple[int, ...], tuple[list[Subschema], dict[str, Subschema]]] = {}
        """What `_apply` returns, by whether the value is an object and by the identities of the schemas."""

    def fill_in(
        self, value: Subschema | list[JsonValue], schemas: list[JsonValue], used: tuple[int | None, ...] = ()
    ) -> JsonValue:
        """Return the value with the defaults of these schemas, which all apply to it, and of the schemas of its parts.

        Return the same object if none is missing. `used` has an entry for each level above: the identity of the
        property that has this level as its default, or None. No property adds its default inside itself, so that this
        ends. Raises `_TooMuchWork`.
        """
        applied, defaults = self._apply(value, schemas)
        self._spend(_LOOK_UNITS * (len(value) + len(defaults)) if len(used) < MAX_DEPTH else MAX_WORK)
        parts: dict[str | int, JsonValue] = {**value} if isinstance(value, dict) else dict(enumerate(value))
        added: dict[str | int, int] = {}
        for name, child in defaults.items():
            if name not in parts and id(child) not in used:
                self._spend(_FILL_UNITS + _LOOK_UNITS * measure_at_least(child["default"], self._work_left))
                parts[name], added[name] = child["default"], id(child)
        has_changed = bool(added)
        for key, part in parts.items():
            if isinstance(part, dict | list):
                self._spend(_FILL_UNITS + _LOOK_UNITS * len(applied))
                below = [_find_part(schema, key) for schema in applied]
                parts[key] = self.fill_in(part, below, (*used, added.get(key)))
                has_changed |= parts[key] is not part
        if not has_changed:
            return value
        return cast("JsonValue", parts) if isinstance(value, dict) else list(parts.values())

    def _spend(self, units: int) -> None:
        self._work_left -= units
        if self._work_left < 0:
            raise _TooMuchWork

    def _apply(self, value: JsonValue, schemas: list[JsonValue]) -> tuple[list[Subschema], dict[str, Subschema]]:
        """Return the schemas with all that they apply to the same value, and their properties with usable defaults."""
        memo_key = (isinstance(value, dict), *map(id, schemas))
        if memo_key not in self._applied:
            applied, defaults = self._applied[memo_key] = [], {}
            stack = [*schemas]
            while stack:
                schema = stack.pop()
                if isinstance(schema, dict):
                    properties = read_properties(schema if isinstance(value, dict) else {})
                    self._spend(_FILL_UNITS + _LOOK_UNITS * len(properties))
                    for name, child in properties.items():
                        if isinstance(child, dict) and "default" in child and self._may_fit(child["default"], child):
                            defaults.setdefault(name, child)
                    applied.append(schema)
                    stack += self._list_beside(value, schema)
        return self._applied[memo_key]

    def _list_beside(self, value: JsonValue, schema: Subschema) -> Iterator[JsonValue]:
        """Yield what the schema applies to the same value: of a choice, only the one schema that allows its type."""
        if "$ref" in schema:
            yield self._follow(schema)
        for keyword in ("allOf", "anyOf", "oneOf"):
            children = schema.get(keyword)
            if isinstance(children, list):
                self._spend(_FILL_UNITS * len(children))
                fitting = [child for child in children if keyword == "allOf" or self._may_fit(value, child)]
                yield from fitting if keyword == "allOf" or len(fitting) == 1 else ()

    def _may_fit(self, value: JsonValue, schema: JsonValue) -> bool:
        """Return whether the schema allows the type of the value."""
        target = self._follow(schema) if isinstance(schema, dict) else schema
        types = target.get("type") if isinstance(target, dict) else None
        names = types if isinstance(types, list) else [types]
        name = _TYPES.get(type(value), "number")
        fits = types is None or name in names or (name == "number" and "integer" in names)
        return fits and target is not False

    def _follow(self, schema: Subschema) -> JsonValue:
        """Return what the schema refers to, or the schema itself if it refers to nothing."""
        reference = schema.get("$ref")
        return find_target(self._root, reference) if isinstance(reference, str) else schema


def _find_part(schema: Subschema, key: str | int) -> JsonValue:
    """Return the schema's own schema for the part of a value that has this name or place; None if it has none."""
    if isinstance(key, str):
        properties = read_properties(schema)
        return properties[key] if key in properties else schema.get("additionalProperties")
    items = schema.get("items")
    places = schema.get("prefixItems", items)
    return places[key] if isinstance(places, list) and key < len(places) else items


def _count_other_work(size: ValueSize) -> int:
    return CHECK_UNITS + SIZE_UNITS * size.values + size.text // 20


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote reference {uri!r} is not followed")
