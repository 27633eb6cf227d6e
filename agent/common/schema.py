"""JSON Schema validation of hostile input: bounded work, linear-time patterns, no fetching, a short list of faults.

The library is `jsonschema-rs`. With `RegexOptions`, its patterns never backtrack
(https://docs.rs/regex/latest/regex/#untrusted-input). For each byte of text, a pattern can still take as many steps as
it has states when compiled. A check runs in native code, and the whole process waits for it. So `Schema` refuses what
would take long to compile, and `find_faults` refuses a value if checking it could take more than `MAX_WORK`: see
`planwarden.agent.common.schema_cost`.
"""

import re
from collections.abc import Callable, Collection, Iterator
from datetime import date, datetime
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from planwarden.agent.common.imports import LazyModule
from planwarden.agent.common.schema_cost import SchemaCost, ValueSize, measure_value, walk
from planwarden.agent.common.schema_defaults import Filling, TooMuchWork, read_defaults
from planwarden.agent.common.struct import JsonValue

# Commands that only read, and servers without work, check nothing and need not load the library.
if TYPE_CHECKING:
    import jsonschema_rs

    from planwarden.agent.common.schema_faults import Path
else:
    jsonschema_rs = LazyModule("jsonschema_rs")

MAX_FAULTS = 20
MAX_WORK = 2_500_000
"""The most units of work of one check: about 50 ms, see `schema_cost`."""
MAX_PATTERN_BYTES = 1024 * 1024
"""The largest size of one compiled pattern; `.{1,1000}` takes that much."""
MAX_PATTERNS_BYTES = 2 * 1024 * 1024
"""The largest size of all compiled patterns of a schema together."""
_PATTERN_SIZES = tuple(1024 * 4**step for step in range(6))
_SIMPLE_UNITS = 2
"""Units for each byte of text under a simple pattern: it has at most 1 KiB when compiled, or matches `_ONE_STATE`."""
_PATTERN_UNITS = 150
"""Units for each byte of text under any other pattern; each KiB of the compiled pattern adds 50."""
CHECK_UNITS = 500
"""Units of the overhead of one check."""
SIZE_UNITS = 5
"""Units of counting one value."""
MAX_EXPLAINED_WORK = 2_500
"""The most units of a check that describes every fault: describing takes a thousand times as long as checking."""
_EXPLAINED = 1_000
MAX_EXPLAINED_BYTES = 2_000_000
"""The most bytes of values and constants that descriptions of faults quote."""
TOO_MUCH_WORK = (
    f"checking it could take more than the {MAX_WORK // 50_000} ms that a check may take: "
    "the value, or the text under a pattern, is too large for its schema"
)

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
        """Raise `ValueError` if `schema` is not a JSON Schema, refers to anything outside itself, or costs too much.

        With `is_known`, the caller knows that `schema` is a JSON Schema, so it is compiled only for its first check.
        With `checks_dates`, which is not used for results, the formats `date` and `date-time` are checked; other
        formats never are. Without `has_defaults`, `fill_in` and `complete` add no defaults.
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
        """Return the arguments with the defaults of the schema and of its subschemas, and at most `MAX_FAULTS` faults.

        If only defaults of inner objects keep the arguments from fitting, leave out these defaults. If
        filling in takes too much work, that is a fault, so that nothing runs with a default that nobody saw.
        """
        outer = self.fill_in(arguments)
        if not self._has_nested_defaults:
            return outer, self.find_faults(outer)
        try:
            completed = Filling(self._schema, MAX_WORK).fill_in(outer, [self._schema])
        except TooMuchWork:
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

    def fits(self, value: JsonValue, limit: int, size: ValueSize | None = None) -> tuple[bool | None, int]:
        """Return whether the value fits, and the most units of work that the check can have taken.

        The answer is None if the check could take more than `limit`, or is impossible, as for text that is not Unicode.
        """
        try:
            size = size or measure_value(value)
        except ValueError:
            return None, CHECK_UNITS
        work = self._estimate(value, size) + _count_other_work(size)
        return (None, limit) if work > limit else (self._validator.is_valid(value), work)

    def find_certain_faults(
        self, value: JsonValue, unknown: "Collection[Path]", limit: int
    ) -> tuple[tuple[str, ...], int]:
        """Return a sentence for each fault that the value has whatever its `unknown` parts are, and the work spent.

        The value has null in place of these parts. If the check could take more work than `limit`, return no fault.
        """
        faults, work = self._check(value, unknown, limit)
        return faults or (), work

    def _check(self, value: JsonValue, unknown: "Collection[Path]", limit: int) -> tuple[tuple[str, ...] | None, int]:
        """Return the value's faults (None if finding them could take more work than `limit`), and the work spent."""
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
        size = self._pattern_bytes[pattern] = measure_pattern(pattern)
        if sum(self._pattern_bytes.values()) > MAX_PATTERNS_BYTES:
            raise ValueError(f"its patterns take more than {MAX_PATTERNS_BYTES} bytes when they are compiled")
        is_simple = size <= _PATTERN_SIZES[0] or _ONE_STATE.fullmatch(pattern)
        return _SIMPLE_UNITS if is_simple else _PATTERN_UNITS + 50 * size / 1024


@lru_cache(maxsize=1024)
def measure_pattern(pattern: str) -> int:
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


def _count_other_work(size: ValueSize) -> int:
    return CHECK_UNITS + SIZE_UNITS * size.values + size.text // 20


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote reference {uri!r} is not followed")
