"""Reads parts of a large artifact in a process of its own, because parsing millions of values takes seconds.

Parsing is native code, which holds the interpreter's lock, so a thread would not let the event loop run meanwhile. The
process gets a line of JSON, the artifact's id and the addresses, and then the content. For each part it writes a line
with the number of pieces and what is wrong, and then the pieces: a list comes in slices, none of which takes long to
parse here.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import cast

import anyio
import anyio.lowlevel

from planwarden.agent.common.artifact import JSON_TYPE, Artifact
from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.pointers import ArtifactPart, PartAddress, read_parts

MAX_BYTES = 8 * 1024 * 1024
"""Of all parts together; those that exceed it are not returned."""
TIME_LIMIT_S = 60.0
SLICE_ITEMS = 500
"""Of a list: as many are parsed at once."""
_SLICE_BYTES = 256 * 1024
_COMMAND = ("-P", "-c", f"from {__name__} import main; main()")
_LIMITER = anyio.CapacityLimiter(2)
"""Each process can take a gigabyte."""


async def read_large_parts(artifact: Artifact, wanted: Sequence[PartAddress]) -> dict[PartAddress, ArtifactPart]:
    """Returns the part at each address. Raises `StoreError` when the process fails or takes too long."""
    try:
        async with _LIMITER:
            with anyio.fail_after(TIME_LIMIT_S):
                lines = await _run(artifact, wanted)
    except (OSError, TimeoutError, anyio.BrokenResourceError) as error:
        reason = str(error) or type(error).__name__
        raise StoreError(f"the process that reads artifact {artifact.artifact_id!r} failed: {reason}") from error
    parts: dict[PartAddress, ArtifactPart] = {}
    written = iter(lines)
    for address in wanted:
        count, is_list, fault, is_absent = json.loads(next(written))
        pieces: list[JsonValue] = []
        for _ in range(count):
            pieces.extend(json.loads(next(written)))
            await anyio.lowlevel.checkpoint()
        value = pieces if is_list else pieces[0] if pieces else None
        parts[address] = ArtifactPart(value, fault, is_absent)
    return parts


async def _run(artifact: Artifact, wanted: Sequence[PartAddress]) -> list[bytes]:
    async with await anyio.open_process([sys.executable, *_COMMAND], stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        listed = [[address.pointer, address.parse, address.may_be_list] for address in wanted]
        await process.stdin.send(json.dumps([artifact.artifact_id, listed]).encode() + b"\n")
        for start in range(0, len(artifact.data), _SLICE_BYTES):
            await process.stdin.send(artifact.data[start : start + _SLICE_BYTES])
        await process.stdin.aclose()
        written = b"".join([chunk async for chunk in process.stdout])
        if await process.wait() != 0:
            raise OSError(f"it ended with code {process.returncode}")
        return written.splitlines()


def main() -> None:
    """Runs in the process."""
    artifact_id, listed = json.loads(sys.stdin.buffer.readline())
    artifact = Artifact(JSON_TYPE, sys.stdin.buffer.read(), artifact_id)
    wanted = [PartAddress(artifact_id, *address) for address in listed]
    sys.stdout.writelines(_write_lines(read_parts(artifact, wanted), wanted))


def _write_lines(parts: dict[PartAddress, ArtifactPart], wanted: Sequence[PartAddress]) -> Iterable[str]:
    written = 0
    for address in wanted:
        part = parts[address]
        is_list = isinstance(part.value, list)
        values = cast("list[JsonValue]", part.value) if is_list else [part.value]
        pieces = [json.dumps(values[start : start + SLICE_ITEMS]) for start in range(0, len(values), SLICE_ITEMS)]
        written += sum(map(len, pieces))
        fault = part.fault
        if written > MAX_BYTES:
            pieces, fault = [], f"leads, with the others, to more than {MAX_BYTES} bytes"
        yield json.dumps([len(pieces), is_list, fault, part.is_absent]) + "\n"
        yield from (piece + "\n" for piece in pieces)
