"""Canonical JSON and the digests built from it.

Two parties that hold the same value compute the same bytes, so that they can compare what a person saw with what runs.
Keys are sorted; there is no white space, only ASCII, and no NaN. Readers refuse duplicate keys.
"""

import hashlib
import json
import math
from collections import Counter
from itertools import chain
from typing import Any

import msgspec

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.struct import JsonValue

MAX_DEPTH = 64
"""Levels of nesting that planwarden accepts in JSON, because Python's own encoder recurses."""

_TEXTS = (str, bytes)
_NODES = (dict, list)
_NUMBERS = (int, float, bool)
_DICT: type[Any] = dict
_BEGINNINGS = (b'"{', b'"[', b'" ', b"\\")
"""Of text with JSON of an object or a list in it: white space may come before, escaped but for the space."""
_CONTAINERS: tuple[type[Any], ...] = (dict, list, tuple, set, frozenset)
_ENCODER = msgspec.json.Encoder()
_SORTING = msgspec.json.Encoder(order="sorted")
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json(value: JsonValue) -> str:
    """Returns the one text of a JSON value. Raises `InvalidArguments` for NaN, infinities and endless numbers."""
    try:
        return _CANONICAL.encode(value)
    except ValueError as error:
        raise InvalidArguments(
            "the value is not JSON: it contains NaN, Infinity or a number with thousands of digits"
        ) from error


def digest(value: JsonValue, *, context: str = "") -> str:
    """Returns the hex SHA-256 of `context`, a zero byte and the canonical JSON; `context` keeps uses apart."""
    return _hash(context, canonical_json(value).encode())


def is_same_json(one: object, other: object) -> bool:
    """Whether two JSON values, or structs of them, have the same canonical JSON: `true` is not 1, and 1 is not 1.0."""
    # What Python calls different is different, and cheaply found; its equals are few, and then compared as they are.
    return one == other and _encode_sorted(one) == _encode_sorted(other)


def _encode_sorted(value: object) -> bytes:
    try:
        return _SORTING.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return canonical_json(msgspec.to_builtins(value)).encode()


def digest_quickly(value: JsonValue, *, context: str) -> str:
    """Returns what is the same for the same JSON, for a tenth of the work of `digest`.

    Another version may return another one, so it is for hints that may be missed, not for what is signed or proven.
    """
    try:
        encoded = _SORTING.encode(value)
    except (TypeError, ValueError, RecursionError):
        encoded = b"null"
    # It writes null for what JSON has not.
    return digest(value, context=context) if b"null" in encoded else _hash(context, encoded)


def read_json(text: str | bytes) -> JsonValue:
    """Returns the value of JSON text from outside.

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
    """Whether the canonical JSON of `value` exceeds `limit_bytes`. Raises `InvalidArguments` if there is none."""
    encoded = _encode_what_has_text(value)
    if encoded is not None and _bound_canonical(encoded) <= limit_bytes:
        return False
    text = _represent(value)
    # A JSON escape is at most twelve times as long as the character that it stands for.
    if text is not None and len(text) * 12 <= limit_bytes and "nan" not in text and "inf" not in text:
        return False
    return len(canonical_json(value)) > limit_bytes


def is_surely_small(value: JsonValue, limit_bytes: int) -> bool:
    """True if the value has a JSON text of at most that size and is nested at most `MAX_DEPTH` levels deep.

    A False says nothing: only the JSON text, which costs several times as much, tells.
    """
    encoded = _encode_what_has_text(value)
    return (
        encoded is not None
        and _bound_canonical(encoded) <= limit_bytes
        and encoded.count(b"[") + encoded.count(b"{") <= MAX_DEPTH
    )


def has_no_json_text(value: JsonValue) -> bool:
    """True if the value has a JSON text, and in it is certainly no null, and no text that may be a list or an object.

    A False says nothing.
    """
    encoded = _encode_what_has_text(value)
    return encoded is not None and not any(map(encoded.__contains__, _BEGINNINGS))


def measure_encoded(value: JsonValue) -> int:
    """Returns the bytes of the value as compact JSON in UTF-8, as it is stored; costs far less than `is_larger`."""
    try:
        return len(_ENCODER.encode(value))
    except UnicodeEncodeError:
        # Half of a surrogate pair has no UTF-8.
        return len(canonical_json(value))


def measure_at_least(value: JsonValue, limit_bytes: int) -> int:
    """Returns a lower bound of the bytes of the canonical JSON; stops above the limit, and copies nothing."""
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
    """Whether a value has more values or characters than that; stops there. Other objects count as one value each."""
    stack: list[Any] = [value]
    values = chars = 0
    while stack:
        node = stack.pop()
        if isinstance(node, _TEXTS):
            chars += len(node)
        elif isinstance(node, _CONTAINERS):
            values += len(node)
            if values > max_values:
                return True
            for part in chain(node, node.values()) if isinstance(node, _DICT) else node:
                if type(part) is str:
                    chars += len(part)
                elif part is not None and type(part) not in _NUMBERS:
                    stack.append(part)
        if chars > max_chars:
            return True
    return False


def has_json_form(value: JsonValue) -> bool:
    """False for NaN, infinities and numbers too long to print, which Python parses and no log can hold."""
    if _encode_what_has_text(value) is not None:
        return True
    text = _represent(value)
    if text is not None and "nan" not in text and "inf" not in text:
        return True
    try:
        canonical_json(value)
    except InvalidArguments:
        return False
    return True


def check_depth(value: JsonValue, limit: int = MAX_DEPTH) -> None:
    """Raises `LimitExceeded` if `value` is nested deeper than `limit` levels; does not recurse."""
    encoded = _encode_what_has_text(value)
    if encoded is not None and encoded.count(b"[") + encoded.count(b"{") <= limit:
        return
    level: list[Any] = [value] if isinstance(value, _NODES) else []
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, _DICT) else node)
            if isinstance(child, _NODES)
        ]
        if not level:
            return
    raise LimitExceeded(f"the JSON is nested deeper than {limit} levels")


def _hash(context: str, encoded: bytes) -> str:
    return hashlib.sha256(context.encode() + b"\0" + encoded).hexdigest()


def _refuse_duplicate_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = min(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"duplicate key {twice[:100]!r}")
    return found


def refuse_constant(name: str) -> JsonValue:
    """For `json`'s `parse_constant`: raises `ValueError`, because NaN and infinities are not JSON."""
    raise ValueError(f"{name} is not JSON")


def parse_finite_float(text: str) -> float:
    """For `json`'s `parse_float`: 1e999 is JSON, but Python reads it as infinity, which is not."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _encode_what_has_text(value: JsonValue) -> bytes | None:
    """Returns compact JSON in UTF-8, a quarter of the work of Python's text; None where there may be no JSON text."""
    try:
        encoded = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None
    # It writes null for what JSON has not.
    return None if b"null" in encoded or b"nan" in encoded or b"inf" in encoded else encoded


def _bound_canonical(encoded: bytes) -> int:
    """Return an upper bound of the bytes of the canonical JSON of what msgspec encoded so."""
    # A character that is not ASCII takes two bytes or more, and six or twelve as an escape; DEL takes one, and six.
    return len(encoded) * 3 + encoded.count(b"\x7f") * 3


def _represent(value: JsonValue) -> str | None:
    """Returns Python's text of the value, which is faster than JSON; None if a number in it has too many digits."""
    try:
        return repr(value)
    except ValueError:
        return None
