"""Reading from the store what references lead to, so that the pure core can resolve them.

Parts of large artifacts are read in a process of their own, because parsing millions of values takes seconds, and is
native code that holds the interpreter's lock: a thread would not let the event loop run. The process gets a line of
JSON, the artifact's id and the addresses, and then the content. It writes a line of JSON for each part.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence

import anyio
import anyio.lowlevel

from planwarden.agent.common.artifact import JSON_TYPE, Artifact
from planwarden.agent.common.errors import StoreError
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
    listed = [[address.pointer, address.parse, address.may_be_list] for address in addresses]
    content = json.dumps([artifact.artifact_id, listed]).encode() + b"\n" + artifact.data
    command = [sys.executable, *_COMMAND]
    try:
        async with _LIMITER:
            with anyio.fail_after(TIME_LIMIT_S):
                process = await anyio.run_process(command, input=content, stderr=subprocess.DEVNULL, check=False)
        if process.returncode != 0:
            raise OSError(f"it ended with code {process.returncode}")
    # A process that ends before it has read everything breaks the pipe, which anyio reports as a group.
    except (OSError, TimeoutError, ExceptionGroup) as error:
        cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        reason = str(cause) or type(cause).__name__
        raise StoreError(f"the process that reads artifact {artifact.artifact_id!r} failed: {reason}") from error
    parts: dict[PartAddress, ArtifactPart] = {}
    for address, line in zip(addresses, process.stdout.splitlines(), strict=True):
        parts[address] = ArtifactPart(*json.loads(line))
        await anyio.lowlevel.checkpoint()
    return parts


def main() -> None:
    """Run in the process."""
    artifact_id, listed = json.loads(sys.stdin.buffer.readline())
    artifact = Artifact(JSON_TYPE, sys.stdin.buffer.read(), artifact_id)
    addresses = [PartAddress(artifact_id, *address) for address in listed]
    parts, chars = read_parts(artifact, addresses), 0
    for address in addresses:
        part = parts[address]
        line = json.dumps([part.value, part.fault, part.is_absent])
        chars += len(line)
        if chars > MAX_BYTES:
            line = json.dumps([None, f"leads, with the others, to more than {MAX_BYTES} bytes", part.is_absent])
        print(line)
