"""Reading from the store what references lead to, so that the pure core can resolve them."""

import logging
from collections.abc import Mapping

from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.references import ArtifactPart, PartAddress, read_parts
from planwarden.agent.ports.store import Store

logger = logging.getLogger(__name__)


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
        except StoreError as error:
            fault = f"cannot be followed: {error.message}"
        else:
            if artifact is not None:
                found.update(read_parts(artifact, pointers))
                continue
            fault = f"cannot be followed: artifact {artifact_id!r} is not in the store any more"
        logger.error("thread %s: artifact %s could not be read", thread_id, artifact_id)
        found.update({PartAddress(artifact_id, pointer): ArtifactPart(fault=fault) for pointer in pointers})
    return found
