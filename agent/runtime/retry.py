"""What a new execution needs of the one that it goes on from: the record of what it takes over, and the artifacts.

The artifacts are stored with the new execution too, because the old one may be pruned before it.
"""

import msgspec

from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import LimitExceeded, NotRetryable
from planwarden.agent.core import events as ev
from planwarden.agent.core.retry_reuse import list_artifacts
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import Store

MAX_ARTIFACT_BYTES = 256 * 1024 * 1024


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution goes on from."""

    execution_id: str
    taken: ev.StepsTakenOver | None = None
    """None when there was no plan yet."""
    artifacts: tuple[Artifact, ...] = ()


async def prepare_retry(store: Store, source: ExecutionState, taken: ev.StepsTakenOver) -> Retry:
    """Returns what goes on from `source`.

    Raises:
        NotRetryable: an artifact is gone, because `source` was pruned meanwhile.
        LimitExceeded: the artifacts have more than `MAX_ARTIFACT_BYTES` together.
        StoreError: one cannot be read.
    """
    artifacts: list[Artifact] = []
    size = 0
    for artifact_id in list_artifacts(taken):
        artifact = await store.artifact(source.thread_id, artifact_id)
        if artifact is None:
            raise NotRetryable(
                f"artifact {artifact_id!r} of execution {source.execution_id!r} is not in the store any more; run the "
                "plan anew",
                details={"executionId": source.execution_id, "artifactId": artifact_id},
            )
        size += len(artifact.data)
        if size > MAX_ARTIFACT_BYTES:
            raise LimitExceeded(f"the artifacts to take over have more than {MAX_ARTIFACT_BYTES // 1024 // 1024} MiB")
        artifacts.append(artifact)
    return Retry(execution_id=source.execution_id, taken=taken, artifacts=tuple(artifacts))
