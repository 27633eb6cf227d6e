"""Reading from the store what references lead to, so that the pure core can resolve them."""

import logging
from collections.abc import Mapping, Sequence

from planwarden.agent.common.artifact import JSON_TYPE, Artifact
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.pointers import ArtifactPart, PartAddress, read_parts
from planwarden.agent.ports.store import Store

logger = logging.getLogger(__name__)

MAX_PARSED_BYTES = 1024 * 1024
"""Larger content is parsed in another process."""
MAX_TEXT_BYTES = 256 * 1024
"""The same for content with text that is read as JSON."""


async def read_wanted(
    store: Store, thread_id: str, wanted: frozenset[PartAddress], new: Mapping[str, Artifact]
) -> dict[PartAddress, ArtifactPart]:
    """Each part that is wanted, every artifact read once. `new` are those that are not committed yet.

    What cannot be read is a fault of the call that needs it, not of everything else in the transaction.
    """
    parts: dict[PartAddress, ArtifactPart] = {}
    for artifact_id in sorted({part.artifact_id for part in wanted}):
        addresses = [part for part in wanted if part.artifact_id == artifact_id]
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
    from planwarden.agent.runtime.part_process import read_large_parts

    return await read_large_parts(artifact, addresses)
