"""What a caller specifies in order to start an execution, and what the execution then begins with.

An execution that continues an older one copies the older one's artifacts, because the older one may be pruned earlier.
"""

from collections.abc import Mapping

import msgspec

from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import LimitExceeded, NotRetryable
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import EarlierResult
from planwarden.agent.core.control.retry_reuse import list_artifacts
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import Plan
from planwarden.agent.ports.store import StartRequest, Store

MAX_ARTIFACT_BYTES = 256 * 1024 * 1024


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a caller wants an execution to start, whatever it runs."""

    requester: Requester
    """Who asks for the execution."""
    thread_id: str | None = None
    """The thread that the execution continues; None for a new thread."""
    key: str | None = None
    """The idempotency key: a principal can start only one execution with the same key."""
    goal: str | None = None
    """What a given plan is for."""
    inputs: Mapping[str, JsonValue] | None = None
    has_all_inputs: bool = False
    """Whether `inputs`, if given, are complete: a retry then takes no further inputs from the earlier execution."""
    options: Mapping[str, JsonValue] | None = None
    """The options, in the form in which the MCP tools take them."""


class ParsedPlan(msgspec.Struct, frozen=True):
    """A plan that can run, and what the check of it found."""

    plan: Plan
    warnings: tuple[str, ...] = ()
    earlier: tuple[EarlierResult, ...] = ()
    """The results that the plan takes from earlier executions of its thread."""


class PreparedThread(msgspec.Struct, frozen=True):
    """The thread of a new execution, and what the execution inherits from it."""

    thread_id: str
    options: ev.Options
    context: str | None = None
    """A summary of what the thread did before, for a model that makes a plan."""
    effects: tuple[ev.ThreadEffect, ...] = ()


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The earlier execution that a new one continues, and what is taken over from it."""

    execution_id: str
    reuse: ev.StepsTakenOver | None = None
    """The steps that are taken over; None if the earlier execution had no plan yet."""
    artifacts: tuple[Artifact, ...] = ()


class NewExecution(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that has not begun."""

    thread: PreparedThread
    requester: Requester
    goal: str | None = None
    parsed: ParsedPlan | None = None
    """The plan; None if a model has to make it."""
    agreed: Plan | None = None
    """The plan before a model revised it, if `parsed` is the plan of an earlier execution."""
    pins: tuple[str, ...] | None = None
    """Pins of the tool definitions that somebody relied on before; if None, the current definitions are pinned."""
    inputs: dict[str, JsonValue] | None = None
    """The inputs of the plan, as `complete_inputs` returns them."""
    plan_only: bool = False
    """Whether the execution stops once the model has made the plan."""
    saved_plan: ev.PlanVersion | None = None
    start: StartRequest | None = None
    """What the store keeps of the request, and the state in which the thread must be."""
    retry: Retry | None = None
    """The earlier execution that the new one continues; None if the new one begins anew."""


async def prepare_retry(store: Store, source: ExecutionState, reuse: ev.StepsTakenOver) -> Retry:
    """Return what a new execution needs in order to continue `source`.

    Raises:
        NotRetryable: an artifact is gone, because `source` was pruned in the meantime.
        LimitExceeded: the artifacts together are larger than `MAX_ARTIFACT_BYTES`.
        StoreError: an artifact cannot be read.
    """
    artifacts: list[Artifact] = []
    size = 0
    for artifact_id in list_artifacts(reuse):
        artifact = await store.artifact(source.thread_id, artifact_id)
        if artifact is None:
            raise NotRetryable(
                f"artifact {artifact_id!r} of execution {source.execution_id!r} is no longer in the store; run the "
                "plan anew",
                details={"executionId": source.execution_id, "artifactId": artifact_id},
            )
        size += len(artifact.data)
        if size > MAX_ARTIFACT_BYTES:
            raise LimitExceeded(f"the artifacts to take over have more than {MAX_ARTIFACT_BYTES // 1024 // 1024} MiB")
        artifacts.append(artifact)
    return Retry(execution_id=source.execution_id, reuse=reuse, artifacts=tuple(artifacts))
