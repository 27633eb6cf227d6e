"""Checks and encodes what a tool returned: at once when it is small, and on a worker thread when it is large.

A result must be JSON. A result that is too large for the log becomes an artifact; one that is too large even for that
fails the call. Native code holds the interpreter's lock while it encodes a value, even on a worker thread. So the size
is limited: encoding the largest accepted result takes less than 100 ms.
"""

import json
from collections.abc import Iterator
from typing import cast

import anyio
import anyio.to_thread
from msgspec.structs import replace
from pydantic_core import SchemaSerializer, core_schema

from planwarden.agent.common.artifact import (
    INLINE_BYTES,
    INLINE_VALUES,
    MAX_ARTIFACT_VALUES,
    PREVIEW_CHARS,
    ResultWithArtifacts,
    build_stand_in,
    make_artifact,
)
from planwarden.agent.common.canonical import MAX_DEPTH, exceeds
from planwarden.agent.common.errors import LimitExceeded, ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.tools.base import first_line

MAX_QUESTION_BYTES = 1024 * 1024
"""The most bytes of a form, and of a resume payload."""
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
`_encode` can refuse it. Otherwise it would silently become null."""


def _to_plain(value: object) -> object:
    """Return a copy in the form that the log stores: dates and integer keys become text, tuples become lists.

    Raises `Exception`: the value has no JSON form.
    """
    return _PLAIN.to_python(value, mode="json")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_to_plain)


class UnusableResult(ToolError):
    """What the tool returned cannot be recorded."""


async def check_result(name: str, result: object, max_bytes: int) -> JsonValue | ResultWithArtifacts:
    """Return the tool's result; if it is large, return a stand-in, with the whole result as an artifact.

    Raises:
        UnusableResult: the result is not JSON, is nested too deeply, or is larger than `max_bytes`.
        ToolError: what the tool attached is larger than `max_bytes`.
    """
    if isinstance(result, ResultWithArtifacts):
        return await _check_attached(name, result, max_bytes)
    try:
        if not exceeds(result, INLINE_VALUES, INLINE_BYTES):
            plain = _to_plain(result)
            # `exceeds` counted an object of another class as one value, but such an object may contain many.
            if len(_encode(plain)) <= INLINE_BYTES and not exceeds(plain, INLINE_VALUES, INLINE_BYTES):
                return cast("JsonValue", plain)
        stored = ResultWithArtifacts(value=None, artifacts=())
        # Finish even if cancelled, as the tool has run.
        with anyio.CancelScope(shield=True):
            stored = await anyio.to_thread.run_sync(_store, result, max_bytes)
        return stored
    except Exception as error:
        raise _build_refusal(name, error) from error


async def _check_attached(name: str, attached: ResultWithArtifacts, max_bytes: int) -> ResultWithArtifacts:
    """Check all parts of a result to which its tool attached artifacts, such as an image, and return the result."""
    if sum(len(artifact.data) for artifact in attached.artifacts) > max_bytes:
        raise ToolError(f"{name} ran, but what it attached is larger than {max_bytes} bytes")
    beside = await check_result(name, attached.beside, max_bytes)
    if isinstance(beside, ResultWithArtifacts):
        attached = replace(attached, beside=beside.value, artifacts=(*attached.artifacts, *beside.artifacts))
    checked = await check_result(name, attached.value, max_bytes)
    if isinstance(checked, ResultWithArtifacts):
        return replace(checked, artifacts=(*attached.artifacts, *checked.artifacts), beside=attached.beside)
    return replace(attached, value=checked)


def check_question_part(name: str, value: JsonValue) -> JsonValue:
    """Return a form or payload of the tool's question as the log stores it. Raises `ToolError` if it is too large."""
    if not exceeds(value, INLINE_VALUES, MAX_QUESTION_BYTES):
        try:
            text = _encode(value)
        except Exception as error:
            raise _build_refusal(name, error) from error
        if len(text) <= MAX_QUESTION_BYTES:
            return cast("JsonValue", json.loads(text))
    limit = f"{MAX_QUESTION_BYTES} bytes or {INLINE_VALUES} values"
    raise ToolError(f"{name} asks with a form or payload of more than {limit}")


def _build_refusal(name: str, error: Exception) -> UnusableResult:
    # Encoding a value may run the code of its class, which may raise anything.
    return UnusableResult(f"{name} ran, but what it returned cannot be kept: {first_line(error)}")


def _store(value: object, max_bytes: int) -> ResultWithArtifacts:
    if exceeds(value, MAX_ARTIFACT_VALUES, max_bytes) or len(encoded := _encode(value)) > max_bytes:
        raise _describe_excess(value, max_bytes)
    preview = value[:PREVIEW_CHARS] if isinstance(value, str) else encoded[:PREVIEW_CHARS].decode()
    artifact = make_artifact(encoded)
    return ResultWithArtifacts(
        value=build_stand_in(artifact, preview), artifacts=(artifact,), whole=artifact.artifact_id
    )


def _describe_excess(value: object, max_bytes: int) -> LimitExceeded:
    """Return the error that quotes the beginning of a value that is too large. Encode in parts, to stop early."""
    beginning = value[:_SHOWN_CHARS] if isinstance(value, str) else ""
    for part in () if beginning else _ENCODER.iterencode(value):
        beginning += part
        if len(beginning) > _SHOWN_CHARS:
            break
    limit = f"{max_bytes} bytes or {MAX_ARTIFACT_VALUES} values"
    return LimitExceeded(f"it has more than {limit}; it begins with {beginning[:_SHOWN_CHARS]!r}")


def _encode(value: object) -> bytes:
    """Return the JSON text, which is ASCII.

    Raises:
        LimitExceeded: the value is nested too deeply.
        Exception: it has no JSON form.
    """
    try:
        encoded = _PLAIN.to_json(value, ensure_ascii=True)
    except ValueError:
        # Only this encoder escapes half of a surrogate pair, and says what is wrong with other values.
        encoded = _ENCODER.encode(_to_plain(value)).encode()
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
