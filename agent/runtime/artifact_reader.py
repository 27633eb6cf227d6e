"""Reading from the store what references lead to, so that the pure core can resolve them."""

import logging
from collections.abc import Mapping, Sequence

from planwarden.agent.common.artifact import JSON_TYPE, Artifact
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.references import ArtifactPart, PartAddress, read_parts
from planwarden.agent.ports.store import Store

logger = logging.getLogger(__name__)

MAX_PARSED_BYTES = 1024 * 1024
"""Larger content is parsed in another process."""


async def read_wanted(
    store: Store, thread_id: str, wanted: frozenset[PartAddress], new: Mapping[str, Artifact]
) -> dict[PartAddress, ArtifactPart]:
    """Each part that is wanted, every artifact read once. `new` are those that are not committed yet.

    What cannot be read is a fault of the call that needs it, not of everything else in the transaction.
    """
    found: dict[PartAddress, ArtifactPart] = {}
    for artifact_id in sorted({part.artifact_id for part in wanted}):
        pointers = [part.pointer for part in wanted if part.artifact_id == artifact_id]
        try:
            artifact = new.get(artifact_id) or await store.artifact(thread_id, artifact_id)
            if artifact is not None:
                found.update(await _read_parts(artifact, pointers))
                continue
        except StoreError as error:
            fault = f"cannot be followed: {error.message}"
        else:
            fault = f"cannot be followed: artifact {artifact_id!r} is not in the store any more"
        logger.error("thread %s: artifact %s could not be read", thread_id, artifact_id)
        found.update({PartAddress(artifact_id, pointer): ArtifactPart(fault=fault) for pointer in pointers})
    return found


async def _read_parts(artifact: Artifact, pointers: Sequence[str]) -> dict[PartAddress, ArtifactPart]:
    if artifact.media_type != JSON_TYPE or len(artifact.data) <= MAX_PARSED_BYTES:
        return read_parts(artifact, pointers)
    # Few executions need this module.
    from planwarden.agent.runtime.part_process import read_large_parts

    return await read_large_parts(artifact, pointers)
