"""Encodes what a tool returned, in slices, when that is too large for the event loop to wait for it.

Native code holds the interpreter's lock from its first value to its last: for 60 MB that is seconds in which leases run
out, on a worker thread too. So only small pieces are given to it, on a worker thread that the loop can interrupt
between them. Releasing millions of values takes as long, so they are released in the same pieces.
"""

import json
from collections.abc import Iterable, Mapping
from io import BytesIO
from itertools import islice
from typing import cast

import anyio
import anyio.to_thread
from pydantic import ConfigDict, TypeAdapter

from planwarden.agent.common.artifact import (
    PREVIEW_CHARS,
    ResultWithArtifacts,
    build_cut_off,
    build_stand_in,
    make_artifact,
)
from planwarden.agent.common.canonical import MAX_DEPTH, check_depth, exceeds
from planwarden.agent.common.errors import LimitExceeded
from planwarden.agent.common.struct import JsonValue

BATCH = 256
"""Values side by side that are encoded at once, if they are small together."""
PIECE_VALUES = 5_000
PIECE_CHARS = 256 * 1024

ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_TOO_DEEP = f"the JSON is nested deeper than {MAX_DEPTH} levels"


_PLAIN = TypeAdapter[object](object, config=ConfigDict(ser_json_inf_nan="constants")).serializer
"""Makes JSON of dates, dataclasses and the like. NaN has no JSON form: as a constant the encoder refuses it; otherwise
it would silently become null."""


def to_plain(value: object) -> object:
    """Return a copy as the log will hold it: dates and integer keys become text, tuples become lists.

    Raises:
        Exception: the value has no JSON form.
    """
    return _PLAIN.to_python(value, mode="json")


async def store_large(box: list[object], max_bytes: int) -> dict[str, JsonValue] | ResultWithArtifacts:
    """Returns a stand-in for the only value in `box`, with the whole as an artifact unless that exceeds `max_bytes`.

    Empties the box, which should be the last to hold the value. Finishes although it is cancelled: the tool has run.

    Raises:
        TypeError, ValueError, RuntimeError, LimitExceeded: the value has no JSON form, or changed meanwhile.
    """
    stored: dict[str, JsonValue] | ResultWithArtifacts = {}
    with anyio.CancelScope(shield=True):
        stored = await anyio.to_thread.run_sync(_store, box, max_bytes)
    return stored


def _store(box: list[object], max_bytes: int) -> dict[str, JsonValue] | ResultWithArtifacts:
    writer = _Writer(max_bytes)
    try:
        preview = box[0][:PREVIEW_CHARS] if isinstance(box[0], str) else None
        writer.write(box[0], 0)
    finally:
        box.clear()
        writer.release()
    if preview is None:
        preview = bytes(writer.text.getbuffer()[:PREVIEW_CHARS]).decode()
    if writer.size > max_bytes:
        return build_cut_off(writer.size, preview)
    artifact = make_artifact(writer.text.getvalue())
    return ResultWithArtifacts(
        value=build_stand_in(artifact, preview), artifacts=(artifact,), whole=artifact.artifact_id
    )


class _Writer:
    """Writes JSON text. Over `max_bytes` it only counts on, and keeps the beginning."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[object] = []
        self.text = BytesIO()
        self.size = 0

    def write(self, value: object, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise LimitExceeded(_TOO_DEEP)
        if not exceeds(value, PIECE_VALUES, PIECE_CHARS):
            self._put(self._encode(value, depth))
        elif isinstance(value, str):
            self._put('"')
            for start in range(0, len(value), PIECE_CHARS):
                self._put(ENCODER.encode(value[start : start + PIECE_CHARS])[1:-1])
            self._put('"')
        elif isinstance(value, dict):
            self._write_object(cast("Mapping[object, object]", value), depth)
        elif isinstance(value, list | tuple | set | frozenset):
            self._write_array(cast("Iterable[object]", value), depth)
        else:
            self.write(to_plain(value), depth)

    def release(self) -> None:
        while self._pieces:
            self._pieces.pop()

    def _write_object(self, value: Mapping[object, object], depth: int) -> None:
        items, comma = iter(value.items()), "{"
        while part := dict(islice(items, BATCH)):
            if not exceeds(part, PIECE_VALUES, PIECE_CHARS):
                self._put(comma + self._encode(part, depth)[1:-1])
                comma = ","
                continue
            for key, child in part.items():
                self._put(comma + self._encode({key: None}, depth)[1 : -len("null}")])
                self.write(child, depth + 1)
                comma = ","
        self._put("}")

    def _write_array(self, value: Iterable[object], depth: int) -> None:
        items, comma = iter(value), "["
        while part := list(islice(items, BATCH)):
            if not exceeds(part, PIECE_VALUES, PIECE_CHARS):
                self._put(comma + self._encode(part, depth)[1:-1])
                comma = ","
                continue
            for child in part:
                self._put(comma)
                self.write(child, depth + 1)
                comma = ","
        self._put("]")

    def _encode(self, piece: object, depth: int) -> str:
        self._pieces.append(piece)
        plain = to_plain(piece)
        text = ENCODER.encode(plain)
        if text.count("[") + text.count("{") > MAX_DEPTH - depth:
            _check_depth(cast("JsonValue", plain), depth)
        return text

    def _put(self, text: str) -> None:
        if self.size <= self._max_bytes:
            self.text.write(text.encode())
        self.size += len(text)


def _check_depth(piece: JsonValue, above: int) -> None:
    """Raises `LimitExceeded` if the piece is nested too deeply, with so many levels above it."""
    try:
        check_depth(piece, MAX_DEPTH - above)
    except LimitExceeded:
        raise LimitExceeded(_TOO_DEEP) from None
