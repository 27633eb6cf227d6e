"""Reading from the store what references lead to, so that the pure core can resolve them.

Parts of large artifacts are read in a process of their own, because parsing millions of values takes seconds, and is
native code that holds the interpreter's lock: a thread would not let the event loop run. The process gets a line of
JSON, the artifact's id and the addresses, and then the content. For each part it writes a line with the number of
pieces and what is wrong, and then the pieces: a list comes in slices, because each must be quick to parse here.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import anyio
import anyio.lowlevel

from planwarden.agent.common.artifact import JSON_TYPE, Artifact
from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.pointers import ArtifactPart, PartAddress, read_parts
from planwarden.agent.ports.store import Store

logger = logging.getLogger(__name__)

MAX_PARSED_BYTES = 1024 * 1024
"""Larger content is parsed in another process."""
MAX_TEXT_BYTES = 256 * 1024
"""The same for content with text that is read as JSON."""
MAX_BYTES = 8 * 1024 * 1024
"""Of all parts together; those that exceed it are not returned."""
TIME_LIMIT_S = 60.0
SLICE_ITEMS = 500
"""Of a list: as many are parsed at once."""
_SLICE_BYTES = 256 * 1024
_COMMAND = ("-P", "-c", f"from {__name__} import main; main()")
_LIMITER = anyio.CapacityLimiter(2)
"""Each process can take a gigabyte."""


async def read_wanted(
    store: Store, thread_id: str, needed_parts: frozenset[PartAddress], new: Mapping[str, Artifact]
) -> dict[PartAddress, ArtifactPart]:
    """Each part that is wanted, every artifact read once. `new` are those that are not committed yet.

    What cannot be read is a fault of the call that needs it, not of everything else in the transaction.
    """
    parts: dict[PartAddress, ArtifactPart] = {}
    for artifact_id in sorted({part.artifact_id for part in needed_parts}):
        addresses = [part for part in needed_parts if part.artifact_id == artifact_id]
        try:
            artifact = new.get(artifact_id) or await store.artifact(thread_id, artifact_id)
            if artifact is not None:
                parts.update(await _read_parts(artifact, addresses))
                continue
        except StoreError as error:
            fault = f"cannot be followed: {error.message}"
        else:
            fault = f"cannot be followed: artifact {artifact_id!r} is not in the store any more"
        logger.error("thread %s: artifact %s could not be read", thread_id, artifact_id)
        parts.update(dict.fromkeys(addresses, ArtifactPart(fault=fault)))
    return parts


async def _read_parts(artifact: Artifact, addresses: Sequence[PartAddress]) -> dict[PartAddress, ArtifactPart]:
    # Text is parsed a second time where it is read as JSON.
    limit = MAX_TEXT_BYTES if any(part.parse for part in addresses) else MAX_PARSED_BYTES
    if artifact.media_type != JSON_TYPE or len(artifact.data) <= limit:
        return read_parts(artifact, addresses)
    return await _read_in_process(artifact, addresses)


async def _read_in_process(artifact: Artifact, addresses: Sequence[PartAddress]) -> dict[PartAddress, ArtifactPart]:
    """Return the part at each address. Raises `StoreError` when the process fails or takes too long."""
    try:
        async with _LIMITER:
            with anyio.fail_after(TIME_LIMIT_S):
                lines = await _run(artifact, addresses)
    except (OSError, TimeoutError, anyio.BrokenResourceError) as error:
        reason = str(error) or type(error).__name__
        raise StoreError(f"the process that reads artifact {artifact.artifact_id!r} failed: {reason}") from error
    parts: dict[PartAddress, ArtifactPart] = {}
    lines_left = iter(lines)
    for address in addresses:
        count, is_list, fault, is_absent = json.loads(next(lines_left))
        pieces: list[JsonValue] = []
        for _ in range(count):
            pieces.extend(json.loads(next(lines_left)))
            await anyio.lowlevel.checkpoint()
        value = pieces if is_list else pieces[0] if pieces else None
        parts[address] = ArtifactPart(value, fault, is_absent)
    return parts


async def _run(artifact: Artifact, addresses: Sequence[PartAddress]) -> list[bytes]:
    async with await anyio.open_process([sys.executable, *_COMMAND], stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        listed = [[address.pointer, address.parse, address.may_be_list] for address in addresses]
        await process.stdin.send(json.dumps([artifact.artifact_id, listed]).encode() + b"\n")
        for start in range(0, len(artifact.data), _SLICE_BYTES):
            await process.stdin.send(artifact.data[start : start + _SLICE_BYTES])
        await process.stdin.aclose()
        output = b"".join([chunk async for chunk in process.stdout])
        if await process.wait() != 0:
            raise OSError(f"it ended with code {process.returncode}")
        return output.splitlines()


def main() -> None:
    """Run in the process."""
    artifact_id, listed = json.loads(sys.stdin.buffer.readline())
    artifact = Artifact(JSON_TYPE, sys.stdin.buffer.read(), artifact_id)
    addresses = [PartAddress(artifact_id, *address) for address in listed]
    sys.stdout.writelines(_write_lines(read_parts(artifact, addresses), addresses))


def _write_lines(parts: dict[PartAddress, ArtifactPart], addresses: Sequence[PartAddress]) -> Iterable[str]:
    chars = 0
    for address in addresses:
        part = parts[address]
        is_list = isinstance(part.value, list)
        values = cast("list[JsonValue]", part.value) if is_list else [part.value]
        pieces = [json.dumps(values[start : start + SLICE_ITEMS]) for start in range(0, len(values), SLICE_ITEMS)]
        chars += sum(map(len, pieces))
        fault = part.fault
        if chars > MAX_BYTES:
            pieces, fault = [], f"leads, with the others, to more than {MAX_BYTES} bytes"
        yield json.dumps([len(pieces), is_list, fault, part.is_absent]) + "\n"
        yield from (piece + "\n" for piece in pieces)
