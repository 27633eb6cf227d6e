"""Reads a large result whole."""

from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import UnknownArtifact
from planwarden.agent.ports.store import Lookups


async def read_artifact(store: Lookups, thread_id: str, artifact_id: str, *, principal: str | None) -> Artifact:
    """Returns a whole artifact of the thread, of anybody's without a `principal`.

    Raises:
        UnknownArtifact: the thread has no such artifact, or belongs to another principal.
    """
    headers = await store.thread(thread_id)
    found: Artifact | None = None
    if headers and principal in (None, headers[0].principal):
        found = await store.artifact(thread_id, artifact_id)
    if found is None:
        raise UnknownArtifact(f"there is no artifact {artifact_id[:64]!r} in thread {thread_id[:64]!r}")
    return found
