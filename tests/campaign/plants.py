"""Planted bugs, switched on only in the campaign's own processes. A campaign that does not find them proves nothing."""

from collections.abc import Callable
from contextlib import suppress

from pydantic import JsonValue

from planwarden.agent.common.artifact import ResultWithArtifacts
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.tool import CallContext, Suspend
from planwarden.agent.runtime.dispatch import CallJob
from planwarden.agent.runtime.run import Run
from planwarden.agent.runtime.transaction import Transaction
from planwarden.storage.locks import LivenessFile
from planwarden.storage.sqlite.statements import SQL
from planwarden.tools.registry import Registry


def ignore_the_fence() -> None:
    """An owner never notices that another process took its execution over, neither when it writes nor when it sends."""
    for name in {"extend_owned", "confirm"} & SQL.keys():
        SQL[name] = SQL[name].replace("owner = ? AND fence = ?", "(owner = ? OR fence <> ?)")

    async def confirm_nothing(self: Run, key: str) -> None:
        """As if nobody had asked."""

    def notice_nothing(self: Run, keep: str | None = None) -> None:
        """As if the execution were still its own."""

    setattr(Run, "confirm_lease", confirm_nothing)  # noqa: B010
    setattr(Run, "disown", notice_nothing)  # noqa: B010


def ignore_the_lock() -> None:
    """An owner counts as dead whether or not its process holds its lock."""

    def is_dead(self: LivenessFile, owner: str) -> bool:
        return owner not in self._held  # pyright: ignore[reportPrivateUsage]

    LivenessFile.is_dead = is_dead


def commit_intents_late() -> None:
    """A tool runs before the intent of its call is stored, and its result is recorded afterwards."""
    commit, call, early = Run._commit, Registry.call, dict[str, JsonValue | ResultWithArtifacts | Suspend]()  # pyright: ignore[reportPrivateUsage]

    async def committing(self: Run, transaction: Transaction) -> None:
        execution_id, tools = self.execution.execution_id, self._context.performer._tools  # pyright: ignore[reportPrivateUsage]
        assert isinstance(tools, Registry)
        for job in transaction.jobs:
            key = f"{execution_id}:{job.key}"
            if isinstance(job, CallJob) and job.call.effect == "effect" and job.kind == "call" and key not in early:
                context = CallContext(
                    execution_id=execution_id,
                    step_id=job.call.step_id,
                    call_id=job.call.call_id,
                    idempotency_key=key,
                    definition_digest=job.definition.digest,
                )
                with suppress(PlanwardenError):
                    early[key] = await call(tools, job.call.tool_name, job.call.arguments or {}, context)
        await commit(self, transaction)

    async def calling(
        self: Registry, name: str, arguments: dict[str, JsonValue], context: CallContext
    ) -> JsonValue | ResultWithArtifacts | Suspend:
        if context.idempotency_key in early:
            return early.pop(context.idempotency_key)
        return await call(self, name, arguments, context)

    Run._commit, Registry.call = committing, calling  # pyright: ignore[reportPrivateUsage]


PLANTS: dict[str, Callable[[], None]] = {
    "no-fence": ignore_the_fence,
    "no-lock": ignore_the_lock,
    "late-intent": commit_intents_late,
}
