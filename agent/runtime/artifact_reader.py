"""Reads the parts of artifacts to which references lead, so that the pure core can resolve the references.

Parts of large artifacts are read in a process of their own, because parsing millions of values takes seconds in native
code that holds the interpreter's lock: a thread would not let the event loop run. The process reads a line of JSON with
the artifact's id and the addresses, and then the content. It writes a line of JSON for each part.
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
"""The largest content that is parsed in this process."""
MAX_TEXT_BYTES = 256 * 1024
"""The same limit if a text in the content is read as JSON, so that it is parsed twice."""
MAX_BYTES = 8 * 1024 * 1024
"""The most bytes of all parts from one process; parts beyond this limit have a fault instead of a value."""
TIME_LIMIT_S = 60.0
_COMMAND = ("-P", "-c", f"from {__name__} import main; main()")
_LIMITER = anyio.CapacityLimiter(2)
"""The limit for processes that parse content: two at a time, because each can take a gigabyte of memory."""


async def read_wanted(
    store: Store, thread_id: str, needed_parts: frozenset[PartAddress], new: Mapping[str, Artifact]
) -> dict[PartAddress, ArtifactPart]:
    """Return the needed parts, reading each artifact once. `new` are the artifacts that are not committed yet.

    A part that cannot be read is a fault of the call that needs it, not of the whole transaction.
    """
    parts: dict[PartAddress, ArtifactPart] = {}
    for artifact_id in sorted({part.artifact_id for part in needed_parts}):
        addresses = [part for part in needed_parts if part.artifact_id == artifact_id]
        try:
            artifact = new.get(artifact_id) or await store.artifact(thread_id, artifact_id)
            if artifact is not None:
                # Text that is read as JSON is parsed a second time.
                limit = MAX_TEXT_BYTES if any(part.parse for part in addresses) else MAX_PARSED_BYTES
                is_small = artifact.media_type != JSON_TYPE or len(artifact.data) <= limit
                parts |= read_parts(artifact, addresses) if is_small else await _read_in_process(artifact, addresses)
                continue
        except StoreError as error:
            fault = f"cannot be followed: {error.message}"
        else:
            fault = f"cannot be followed: artifact {artifact_id!r} is no longer in the store"
        logger.error("thread %s: artifact %s could not be read", thread_id, artifact_id)
        parts.update(dict.fromkeys(addresses, ArtifactPart(fault=fault)))
    return parts


async def _read_in_process(artifact: Artifact, addresses: Sequence[PartAddress]) -> dict[PartAddress, ArtifactPart]:
    """Return the part at each address. Raises `StoreError` when the process fails or takes too long."""
    encoded = [[address.pointer, address.parse, address.may_be_list] for address in addresses]
    content = json.dumps([artifact.artifact_id, encoded]).encode() + b"\n" + artifact.data
    command = [sys.executable, *_COMMAND]
    try:
        async with _LIMITER:
            with anyio.fail_after(TIME_LIMIT_S):
                process = await anyio.run_process(command, input=content, stderr=subprocess.DEVNULL, check=False)
        if process.returncode != 0:
            raise OSError(f"it ended with code {process.returncode}")
    # If the process ends before it has read everything, the pipe breaks, and anyio raises a group of exceptions.
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
    """Read the parts and print them; this runs in the process that `_read_in_process` starts."""
    artifact_id, encoded = json.loads(sys.stdin.buffer.readline())
    artifact = Artifact(JSON_TYPE, sys.stdin.buffer.read(), artifact_id)
    addresses = [PartAddress(artifact_id, *address) for address in encoded]
    parts, chars = read_parts(artifact, addresses), 0
    for address in addresses:
        part = parts[address]
        line = json.dumps([part.value, part.fault, part.is_absent])
        chars += len(line)
        if chars > MAX_BYTES:
            line = json.dumps([None, f"leads, with the others, to more than {MAX_BYTES} bytes", part.is_absent])
        print(line)
