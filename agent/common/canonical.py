"""Canonical JSON and the digests built from it.

Two parties that hold the same value must compute the same bytes, so that "what was shown is what runs" can be
compared instead of believed: keys sorted, no white space, ASCII, no NaN, duplicate keys refused when reading.
"""

import hashlib
import json
import math

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded

MAX_DEPTH = 64
"""Nesting of a JSON document that planwarden accepts; Python's own encoder recurses."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json(value: JsonValue) -> str:
    """The one text of a JSON value. Raises `InvalidArguments` for NaN, infinities and endless numbers."""
    try:
        return _CANONICAL.encode(value)
    except ValueError as error:
        raise InvalidArguments(
            "the value is not JSON: NaN, Infinity and numbers with thousands of digits have no place in it"
        ) from error


def digest(value: JsonValue, *, context: str = "") -> str:
    """Hex SHA-256 of the canonical JSON, prefixed by `context` and a zero byte to keep uses apart."""
    return hashlib.sha256(f"{context}\0{canonical_json(value)}".encode()).hexdigest()


def read_json(text: str | bytes) -> JsonValue:
    """Parse JSON that came from outside.

    Raises:
        InvalidArguments: not JSON, a duplicate key, NaN, or a number beyond the floating-point ones.
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
    """Whether the canonical JSON of `value` has more than `limit_bytes` bytes. Raises `InvalidArguments` if it has none."""
    text = _represent(value)
    # No JSON escape is more than twelve times as long as what it stands for.
    if text is not None and len(text) * 12 <= limit_bytes and "nan" not in text and "inf" not in text:
        return False
    return len(canonical_json(value)) > limit_bytes


def has_json_form(value: JsonValue) -> bool:
    """False for NaN, infinities and endless numbers, which Python's parsers let through and no log can hold."""
    text = _represent(value)
    if text is not None and "nan" not in text and "inf" not in text:
        return True
    try:
        canonical_json(value)
    except InvalidArguments:
        return False
    return True


def check_depth(value: JsonValue, limit: int = MAX_DEPTH) -> None:
    """Raise `LimitExceeded` when `value` is nested deeper than `limit`; walks without recursion."""
    level: list[JsonValue] = [value]
    for _ in range(limit):
        deeper: list[JsonValue] = []
        for node in level:
            if isinstance(node, dict):
                deeper.extend(child for child in node.values() if isinstance(child, dict | list))
            elif isinstance(node, list):
                deeper.extend(child for child in node if isinstance(child, dict | list))
        if not deeper:
            return
        level = deeper
    raise LimitExceeded(f"the JSON is nested deeper than {limit} levels")


def _refuse_duplicate_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"duplicate key {twice[0]!r}")
    return found


def refuse_constant(name: str) -> JsonValue:
    """For `json`'s `parse_constant`: NaN and infinities are not JSON."""
    raise ValueError(f"{name} is not JSON")


def parse_finite_float(text: str) -> float:
    """For `json`'s `parse_float`: 1e999 is JSON, but the infinity that Python reads it as is not."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _represent(value: JsonValue) -> str | None:
    """Python's text of the value, made in C; None when a number in it has too many digits for one."""
    try:
        return repr(value)
    except ValueError:
        return None
