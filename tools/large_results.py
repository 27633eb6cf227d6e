"""Encodes what a tool returned: at once when it is small, and on a worker thread when it is large.

Native code holds the interpreter's lock while it encodes a value, even on a worker thread. So the size is limited:
encoding the largest accepted result takes less than 100 ms.
"""

import json
from collections.abc import Iterator

import anyio
import anyio.to_thread
from pydantic_core import SchemaSerializer, core_schema

from planwarden.agent.common.artifact import (
    MAX_ARTIFACT_VALUES,
    PREVIEW_CHARS,
    ResultWithArtifacts,
    build_stand_in,
    make_artifact,
)
from planwarden.agent.common.canonical import MAX_DEPTH, exceeds
from planwarden.agent.common.errors import LimitExceeded

_SHOWN_CHARS = 200
"""How many characters of a refused result the error quotes."""
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = b"0" * 4_301
"""Python reads integers of at most 4,300 digits; `_AS_ZEROS` makes each digit a zero."""
_PIECE_BYTES = 256 * 1024
_PLAIN = SchemaSerializer(core_schema.any_schema(), {"ser_json_inf_nan": "constants"})
"""Makes JSON of dates, dataclasses and the like. NaN, which has no JSON form, stays the constant `NaN`, so that
`encode` can refuse it. Otherwise it would silently become null."""


def to_plain(value: object) -> object:
    """Return a copy in the form that the log stores: dates and integer keys become text, tuples become lists.

    Raises `Exception`: the value has no JSON form.
    """
    return _PLAIN.to_python(value, mode="json")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=to_plain)


async def store_large(value: object, max_bytes: int) -> ResultWithArtifacts:
    """Return a stand-in for the value, with the whole as an artifact. Finish even if cancelled, as the tool has run.

    Raises:
        LimitExceeded: the JSON exceeds `max_bytes` bytes or `MAX_ARTIFACT_VALUES` values, or is nested too deeply.
        Exception: the value has no JSON form.
    """
    stored = ResultWithArtifacts(value=None, artifacts=())
    with anyio.CancelScope(shield=True):
        stored = await anyio.to_thread.run_sync(_store, value, max_bytes)
    return stored


def _store(value: object, max_bytes: int) -> ResultWithArtifacts:
    if exceeds(value, MAX_ARTIFACT_VALUES, max_bytes) or len(encoded := encode(value)) > max_bytes:
        raise _refuse(value, max_bytes)
    preview = value[:PREVIEW_CHARS] if isinstance(value, str) else encoded[:PREVIEW_CHARS].decode()
    artifact = make_artifact(encoded)
    return ResultWithArtifacts(
        value=build_stand_in(artifact, preview), artifacts=(artifact,), whole=artifact.artifact_id
    )


def _refuse(value: object, max_bytes: int) -> LimitExceeded:
    """Return the error that quotes the beginning of a value that is too large. Encode in parts, to stop early."""
    beginning = value[:_SHOWN_CHARS] if isinstance(value, str) else ""
    for part in () if beginning else _ENCODER.iterencode(value):
        beginning += part
        if len(beginning) > _SHOWN_CHARS:
            break
    limit = f"{max_bytes} bytes or {MAX_ARTIFACT_VALUES} values"
    return LimitExceeded(f"it has more than {limit}; it begins with {beginning[:_SHOWN_CHARS]!r}")


def encode(value: object) -> bytes:
    """Return the JSON text, which is ASCII.

    Raises:
        LimitExceeded: the value is nested too deeply.
        Exception: it has no JSON form.
    """
    try:
        encoded = _PLAIN.to_json(value, ensure_ascii=True)
    except ValueError:
        # Only this encoder escapes half of a surrogate pair, and says what is wrong with other values.
        encoded = _ENCODER.encode(to_plain(value)).encode()
    outside = b"".join(_leave_out_texts(encoded))
    if b"N" in outside or b"I" in outside or _LONG_INTEGER in outside.translate(_AS_ZEROS):
        raise ValueError("NaN, Infinity and numbers with thousands of digits are not JSON compliant")
    brackets = outside.translate(_SQUARE, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        # Each pass removes the innermost level.
        brackets = brackets.replace(b"[]", b"") if brackets else b""
    if brackets:
        raise LimitExceeded(f"the JSON is nested deeper than {MAX_DEPTH} levels")
    return encoded


def _leave_out_texts(encoded: bytes) -> Iterator[bytes]:
    """Yield what is outside of the JSON's strings, in pieces. Other threads can run between two pieces."""
    encoded = encoded.replace(rb"\\", b"").replace(rb"\"", b"")
    quotes = 0
    for start in range(0, len(encoded), _PIECE_BYTES):
        parts = encoded[start : start + _PIECE_BYTES].split(b'"')
        yield b"".join(parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
