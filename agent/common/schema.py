"""JSON Schema validation of hostile input: bounded work, linear-time patterns, no fetching, few faults.

The library is `jsonschema-rs`. With `RegexOptions` it uses an engine that cannot backtrack
(https://docs.rs/regex/latest/regex/#untrusted-input), but that can still take as many steps for each byte of text as
the compiled pattern has states. A check runs in native code, during which the whole process waits. So `Schema` refuses
what would take long to compile, and `find_faults` refuses a value if checking it could take more than `MAX_WORK`:
see `planwarden.agent.common.schema_cost` and `schema_work`.
"""

import re
from collections.abc import Callable, Collection
from datetime import date, datetime
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from planwarden.agent.common.schema_cost import EXTREME, MAX_INTEGER_BITS, estimate_cost
from planwarden.agent.common.struct import JsonValue

# Imported for the first check and the first fault: commands that read, and servers without work, make none.
if TYPE_CHECKING:
    import jsonschema_rs

    from planwarden.agent.common.schema_faults import Path

MAX_FAULTS = 20
MAX_WORK = 300_000
"""Units of one check: about 30 ms, see `schema_work`."""
MAX_PATTERN_BYTES = 1024 * 1024
"""Of one compiled pattern; `.{1,1000}` takes as much."""
MAX_PATTERNS_BYTES = 2 * 1024 * 1024
"""Of all compiled patterns of a schema."""
_PATTERN_SIZES = tuple(1024 * 4**step for step in range(6))
TEXT_PER_UNIT = 10_240
"""Bytes of text times bytes of the compiled pattern: at most 10 ns for each byte and KiB."""
MAX_EXPLAINED_WORK = 2_000
"""Of a check whose every fault is described: describing one takes a hundred times as long as finding it."""
CHECK_WORK = 500
"""Units of what stands around one check."""
COUNTED = 20
"""How many times the work of a check it takes to count that work."""
UNCOUNTED = 2_000
"""A check of at most that many units is made without counting, which takes longer."""
EXPLAIN_WORK = 1_000
EXPLAINED = 25
"""How many times the work of a check it takes to describe what that finds."""
MAX_EXPLAINED_BYTES = 2_000_000
"""Of the values and constants that descriptions repeat."""

_ENCODER = msgspec.json.Encoder()
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = b"0" * 301
"""As it looks with `_AS_ZEROS`."""
# Begins with a digit whatever follows, so that `re` looks for digits only: half of the work.
_EXTREME_NUMBER = re.compile(rb"\d(?:[eE][-+]?\d|\d{14}|(?<=0)\.00)")
TOO_MUCH_WORK = "checking it would take too much work: the value is too large or nested too deeply for its schema"


class Schema:
    """A compiled schema."""

    def __init__(self, schema: dict[str, JsonValue], *, is_known: bool = False, checks_dates: bool = False) -> None:
        """Raises `ValueError` if it is no JSON Schema, refers to anything outside itself, or costs too much.

        One that is known to be a JSON Schema is compiled by its first check. With `checks_dates` text has to keep the
        formats `date` and `date-time`; a result that does not is a result all the same. No other format is checked.
        """
        self._checks_dates = checks_dates
        self._schema = schema
        self._size = len(repr(schema))
        self._cost = estimate_cost(schema)
        self._sizes = {pattern: _measure_pattern(pattern) for pattern in self._cost.patterns}
        if sum(self._sizes.values()) > MAX_PATTERNS_BYTES:
            raise ValueError(f"its patterns take more than {MAX_PATTERNS_BYTES} bytes when they are compiled")
        self._pattern_bytes = sum(self._sizes[pattern] * times for pattern, times in self._cost.patterns.items())
        self._defaults = _read_defaults(schema)
        if not is_known:
            self._validator = _compile(schema, checks_dates=checks_dates)

    @cached_property
    def _validator(self) -> "jsonschema_rs.Validator":
        return _compile(self._schema, checks_dates=self._checks_dates)

    def fill_in(self, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Returns the arguments with the schema's top-level defaults; the same object if none is missing."""
        if not self._defaults:
            return arguments
        missing = {name: default for name, default in self._defaults.items() if name not in arguments}
        return {**arguments, **missing} if missing else arguments

    def find_faults(self, value: JsonValue) -> tuple[str, ...]:
        """Returns a sentence per fault, at most `MAX_FAULTS`; empty if the value fits.

        A value that would take too much work to check has a fault.
        """
        encoded = _encode(value)
        if isinstance(encoded, str):
            return (encoded,)
        if not self._is_small(encoded) and self.count_work(value, MAX_WORK) is None:
            return (TOO_MUCH_WORK,)
        return () if self._validator.is_valid(value) else self._describe_faults(value, len(encoded))

    def is_valid(self, value: JsonValue) -> bool:
        """Return whether a value fits; the work of that is the caller's to bound."""
        return self._validator.is_valid(value)

    def fits(self, value: JsonValue, limit: int) -> tuple[bool | None, int]:
        """Returns whether the value fits, and the units of work spent at most; None if that takes more than `limit`,
        or cannot be known, as of text that is not Unicode.
        """
        encoded = _encode(value)
        if isinstance(encoded, str):
            return None, CHECK_WORK
        work = self._bound_work(encoded)
        if work is None or work > min(limit, UNCOUNTED):
            times = 1 if isinstance(value, str) else COUNTED
            counted = self.count_work(value, min(limit // times, MAX_WORK))
            if counted is None:
                return None, limit
            work = times * counted
        return self._validator.is_valid(value), work + len(encoded) // 100

    def find_certain_faults(
        self, value: JsonValue, unknown: "Collection[Path]", limit: int
    ) -> tuple[tuple[str, ...], int]:
        """Returns a sentence per fault that the value has whatever its `unknown` parts will be, and the work spent.

        The value has null in these parts. What more work than `limit` would have to find is not found.
        """
        try:
            encoded = _ENCODER.encode(value)
        except (UnicodeEncodeError, TypeError, RecursionError):
            return self.find_faults(value), CHECK_WORK
        size = len(encoded)
        most = self._bound_work(encoded)
        if most is not None and most <= UNCOUNTED and self._validator.is_valid(value):
            return (), CHECK_WORK + most
        counted = self.count_work(value, min(limit // COUNTED, MAX_WORK))
        if counted is None:
            return (), limit
        work = CHECK_WORK + size // 100 + COUNTED * counted
        if self._validator.is_valid(value):
            return (), work
        work += EXPLAIN_WORK + EXPLAINED * min(counted, MAX_EXPLAINED_WORK)
        return ((), work) if work > limit else (self._describe_faults(value, size, unknown), work)

    def _is_small(self, encoded: bytes) -> bool:
        """Whether the value is so small that it does not matter where in the schema its parts are looked at."""
        most = self._bound_work(encoded)
        return most is not None and most <= MAX_WORK

    def _bound_work(self, encoded: bytes) -> int | None:
        """Returns the units of a check at most, wherever in the schema the parts of the value are looked at.

        None where no bound is known without counting.
        """
        cost, size = self._cost, len(encoded)
        if cost.returns > 1:
            return None
        most = cost.work * (size // 2 + 1) + self._pattern_bytes * size // TEXT_PER_UNIT
        if cost.numeric and _EXTREME_NUMBER.search(encoded):
            # At least six characters are needed for a number that is slow to compare.
            most += cost.numeric * size * EXTREME // 6
        return most

    def count_work(self, value: JsonValue, limit: int) -> int | None:
        """Returns the units of work that checking the value takes at most; None for more than `limit`."""
        from planwarden.agent.common.schema_work import count_work

        costs = {pattern: size / TEXT_PER_UNIT for pattern, size in self._sizes.items()}
        return count_work(self._schema, value, costs, limit)

    def _describe_faults(self, value: JsonValue, size: int, unknown: "Collection[Path]" = ()) -> tuple[str, ...]:
        from planwarden.agent.common.schema_faults import UnknownParts, describe_faults

        work = self.count_work(value, MAX_EXPLAINED_WORK)
        repeated = size + self._size
        if work is None or work * repeated > MAX_EXPLAINED_BYTES:
            brief = self._list_faults_of_keys(value)
            return brief or (() if unknown else ("it does not fit its schema, and is too large to say where",))
        found = describe_faults(self._validator.iter_errors(value), UnknownParts(unknown), self._schema)
        return tuple(islice(found, MAX_FAULTS))

    def _list_faults_of_keys(self, value: JsonValue) -> tuple[str, ...]:
        """Returns what is wrong with the value's own keys."""
        faults: list[str] = []
        if isinstance(value, dict):
            required, named = self._schema.get("required"), self._schema.get("properties")
            missing = [name for name in required if name not in value] if isinstance(required, list) else []
            faults += [f"{str(name)[:100]!r} is a required property" for name in missing]
            if self._schema.get("additionalProperties") is False and isinstance(named, dict):
                faults += [f"{name[:100]!r} was unexpected" for name in value if name not in named]
        return tuple(faults[:MAX_FAULTS])


@lru_cache(maxsize=1024)
def _measure_pattern(pattern: str) -> int:
    """Returns the bytes that the compiled pattern takes at most. Raises `ValueError` if it is not usable."""
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
    import jsonschema_rs

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


def _read_defaults(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    named = schema.get("properties")
    parts = named.items() if isinstance(named, dict) else ()
    return {name: part["default"] for name, part in parts if isinstance(part, dict) and "default" in part}


def has_short_integers(value: JsonValue) -> bool:
    """Whether every integer has at most `MAX_INTEGER_BITS`."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, int) and node.bit_length() > MAX_INTEGER_BITS:
            return False
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return True


def _encode(value: JsonValue) -> bytes | str:
    """Returns the value as JSON; as text, why the library cannot check it."""
    try:
        encoded = _ENCODER.encode(value)
    except UnicodeEncodeError:
        # JSON can escape half a surrogate pair, and the library reads UTF-8, which has none.
        return "the value contains text that is not Unicode: half of a surrogate pair"
    except (TypeError, RecursionError):
        return "it is not JSON, or is nested too deeply"
    if len(encoded) > 300 and _LONG_INTEGER in encoded.translate(_AS_ZEROS) and not has_short_integers(value):
        return f"it has an integer of more than {MAX_INTEGER_BITS} bits"
    return encoded


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote reference {uri!r} is not followed")
