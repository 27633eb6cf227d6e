"""Canonical JSON and the digests built from it.

The same value always gives the same bytes, so what a person saw can be compared with what runs. Keys are sorted;
the text is ASCII, without white space between tokens and without NaN. `read_json` refuses duplicate keys.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection
from typing import Any, cast

import msgspec

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.struct import JsonValue

MAX_DEPTH = 64
"""The most levels of nesting that planwarden accepts in JSON, because Python's own encoder recurses."""
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: JsonValue) -> str:
    """Return the canonical text. Raises `InvalidArguments` for what JSON cannot hold: NaN, overlong numbers, bytes."""
    try:
        return _ENCODER.encode(value)
    except (ValueError, TypeError) as error:
        raise InvalidArguments(
            "the value is not JSON: it contains NaN, Infinity, a number with thousands of digits or an object of Python"
        ) from error


def digest(value: JsonValue, *, context: str = "") -> str:
    """Return the hex SHA-256 of `context`, a zero byte and the canonical JSON. Each use has a `context` of its own."""
    return hashlib.sha256(context.encode() + b"\0" + canonical_json(value).encode()).hexdigest()


def is_same_json(one: object, other: object) -> bool:
    """Return whether two JSON values, or structs, are equal: 1 equals 1.0, but not `true`."""
    # Python's comparison finds most differences cheaply, but calls `true` and 1 equal.
    if one != other:
        return False
    return comparable_json(msgspec.to_builtins(one)) == comparable_json(msgspec.to_builtins(other))


def comparable_json(value: JsonValue) -> str:
    """Return the canonical JSON with each whole float as an integer, so that equal values have equal text."""
    text = canonical_json(value)
    # The text of a whole float has ".0" or "e+"; writing the text is much cheaper than walking through the value.
    return canonical_json(normalize_numbers(value)) if ".0" in text or "e+" in text else text


def normalize_numbers(value: JsonValue) -> JsonValue:
    """Return the value with each whole float in it as an integer: 1.0 as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [normalize_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: normalize_numbers(item) for name, item in value.items()}
    return value


def read_json(text: str | bytes) -> JsonValue:
    """Return the value of JSON text from outside.

    Raises:
        InvalidArguments: not JSON, a duplicate key, NaN, or a number too large for a float.
        LimitExceeded: nested deeper than `MAX_DEPTH`.
    """
    try:
        value: JsonValue = json.loads(
            text,
            object_pairs_hook=_refuse_duplicate_keys,
            parse_constant=refuse_constant,
            parse_float=parse_finite_float,
        )
    except RecursionError:
        raise LimitExceeded(f"the JSON is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidArguments(f"not valid JSON: {error}") from None
    check_depth(value)
    return value


def is_larger(value: JsonValue, limit_bytes: int) -> bool:
    """Return whether the canonical JSON of `value` exceeds `limit_bytes`. Raises `InvalidArguments` if it has none."""
    return len(canonical_json(value)) > limit_bytes


def measure_encoded(value: JsonValue) -> int:
    """Return how many bytes the value takes as it is stored: as compact JSON in UTF-8."""
    try:
        return len(msgspec.json.encode(value))
    except UnicodeEncodeError:
        # UTF-8 cannot encode half of a surrogate pair.
        return len(canonical_json(value))


def measure_at_least(value: JsonValue, limit_bytes: int) -> int:
    """Return a lower bound on the bytes of the canonical JSON. Counting stops above the limit, and copies nothing."""
    stack, size = [value], 0
    while stack and size + len(stack) <= limit_bytes:
        node = stack.pop()
        if isinstance(node, str):
            size += len(node) + 2
        elif isinstance(node, dict):
            size += 2 + sum(map(len, node)) + 3 * len(node)
            stack.extend(node.values())
        elif isinstance(node, list):
            size += 1 + len(node)
            stack.extend(node)
        else:
            size += 1
    return size + len(stack)


def exceeds(value: object, max_values: int, max_chars: int) -> bool:
    """Return whether a value exceeds one of the limits; stop counting there. Each entry of a container is one value."""
    stack: list[Any] = [value]
    values = chars = 0
    while stack:
        node = stack.pop()
        if isinstance(node, (str, bytes)):
            chars += len(node)
        elif isinstance(node, (dict, list, tuple, set, frozenset)):
            parts = cast("Collection[Any]", node)
            values += len(parts)
            if values <= max_values:
                stack += parts
                stack += node.values() if isinstance(node, dict) else ()
        if values > max_values or chars > max_chars:
            return True
    return False


def has_json_form(value: JsonValue) -> bool:
    """Return False for NaN, infinities and numbers too long to print: Python parses them, but no log can store them."""
    try:
        canonical_json(value)
    except InvalidArguments:
        return False
    return True


def check_depth(value: JsonValue) -> None:
    """Raise `LimitExceeded` if `value` is nested deeper than `MAX_DEPTH` levels. The check does not recurse."""
    level: list[JsonValue] = [value]
    for _ in range(MAX_DEPTH):
        below: list[JsonValue] = []
        for node in level:
            below += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        level = [part for part in below if isinstance(part, dict | list)]
        if not level:
            return
    raise LimitExceeded(f"the JSON is nested deeper than {MAX_DEPTH} levels")


def _refuse_duplicate_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = min(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"duplicate key {twice[:100]!r}")
    return value


def refuse_constant(name: str) -> JsonValue:
    """Raise `ValueError`: `json` calls this as `parse_constant` for NaN and infinities, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


def parse_finite_float(text: str) -> float:
    """Return the number, for `json`'s `parse_float`. Raises `ValueError` for 1e999, which Python reads as infinity."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value
