"""What a caller says about an execution that is to start, and what the execution then begins with.

An execution that goes on from an older one stores the artifacts of that one too, because that may be pruned earlier.
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
    """Who asks for it."""
    thread_id: str | None = None
    """The thread that it continues; None for a new thread."""
    key: str | None = None
    """The idempotency key: a key that has started something starts nothing more."""
    goal: str | None = None
    """What a given plan is for."""
    inputs: Mapping[str, JsonValue] | None = None
    """What the plan is given."""
    options: Mapping[str, JsonValue] | None = None
    """As the MCP tools take them."""


class ParsedPlan(msgspec.Struct, frozen=True):
    """A plan that can run, and what was found while it was checked."""

    plan: Plan
    warnings: tuple[str, ...] = ()
    earlier: tuple[EarlierResult, ...] = ()
    """What it takes from earlier executions of its thread."""


class PreparedThread(msgspec.Struct, frozen=True):
    """The thread of a new execution, and what the execution inherits from it."""

    thread_id: str
    options: ev.Options
    context: str | None = None
    """What the thread did before, for a model that makes a plan."""
    effects: tuple[ev.ThreadEffect, ...] = ()
    """The newest effects of its executions."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution goes on from."""

    execution_id: str
    reuse: ev.StepsTakenOver | None = None
    """None when there was no plan yet."""
    artifacts: tuple[Artifact, ...] = ()


class NewExecution(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that has not begun."""

    thread: PreparedThread
    requester: Requester
    goal: str | None = None
    parsed: ParsedPlan | None = None
    """The plan; None if a model has to make it."""
    pins: tuple[str, ...] | None = None
    """Pins of the definitions that somebody relied on before; without them, those of the tools as they are now."""
    inputs: dict[str, JsonValue] | None = None
    """What the plan is given, as `fill_inputs` returns it."""
    plan_only: bool = False
    """It stops when the model has made the plan."""
    saved_plan: ev.PlanVersion | None = None
    """The saved plan that it runs."""
    start: StartRequest | None = None
    """What the store keeps of the request, and requires of the thread."""
    retry: Retry | None = None
    """What it goes on from."""


async def prepare_retry(store: Store, source: ExecutionState, reuse: ev.StepsTakenOver) -> Retry:
    """Return what goes on from `source`.

    Raises:
        NotRetryable: an artifact is gone, because `source` was pruned in the meantime.
        LimitExceeded: the artifacts have more than `MAX_ARTIFACT_BYTES` together.
        StoreError: one cannot be read.
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
