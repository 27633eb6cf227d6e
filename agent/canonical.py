"""Canonical JSON and the digests built from it.

Two parties that hold the same value must compute the same bytes, so that "what was shown is what runs" can be
compared instead of believed: keys sorted, no white space, ASCII, no NaN, duplicate keys refused when reading.
"""

import hashlib
import json

from pydantic import JsonValue

from planwarden.agent.errors import InvalidArguments, LimitExceeded

MAX_DEPTH = 64
"""Nesting of a JSON document that planwarden accepts; Python's own encoder recurses."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json(value: JsonValue) -> str:
    """The one text of a JSON value. Raises `InvalidArguments` for NaN and infinities."""
    try:
        return _CANONICAL.encode(value)
    except ValueError as error:
        raise InvalidArguments("the value is not JSON: NaN and Infinity have no place in it") from error


def digest(value: JsonValue, *, context: str = "") -> str:
    """Hex SHA-256 of the canonical JSON, prefixed by `context` and a zero byte to keep uses apart."""
    return hashlib.sha256(f"{context}\0{canonical_json(value)}".encode()).hexdigest()


def read_json(text: str | bytes) -> JsonValue:
    """Parse JSON that came from outside.

    Raises:
        InvalidArguments: not JSON, a duplicate key, NaN, or nested deeper than `MAX_DEPTH`.
    """
    try:
        value: JsonValue = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except RecursionError:
        raise LimitExceeded(f"the JSON is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidArguments(f"not valid JSON: {error}") from None
    check_depth(value)
    return value


def is_larger(value: JsonValue, limit_bytes: int) -> bool:
    """Whether the canonical JSON of `value` has more than `limit_bytes` bytes."""
    # No JSON escape is more than twelve times as long as what it stands for, and repr runs in C.
    return len(repr(value)) * 12 > limit_bytes and len(canonical_json(value)) > limit_bytes


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


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"duplicate key {twice[0]!r}")
    return found


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")
