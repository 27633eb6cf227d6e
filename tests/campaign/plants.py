"""Planted bugs, switched on only in the campaign's own processes. A campaign that does not find them proves nothing."""

from collections.abc import Callable
from contextlib import suppress

from pydantic import JsonValue

from planwarden.agent.approval import grants
from planwarden.agent.common.artifact import ResultWithArtifacts
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.tool import CallContext, Suspend
from planwarden.agent.ports.grant import Grant
from planwarden.agent.ports.store import Append, Lease
from planwarden.agent.runtime.dispatch import CallJob
from planwarden.agent.runtime.run import Run
from planwarden.agent.runtime.transaction import Job, Transaction
from planwarden.storage.locks import LivenessFile
from planwarden.storage.postgres.liveness import LockLiveness
from planwarden.storage.postgres.statements import SQL as SHARED_SQL
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.registry import Registry


def ignore_the_fence() -> None:
    """An owner never notices that another process took its execution over, neither when it writes nor when it sends."""
    for name in {"extend_execution", "confirm"} & SQL.keys():
        SQL[name] = SQL[name].replace("owner IS ? AND fence = ?", "(owner IS ? OR fence <> ?)")
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
    build, store, call = Run._build_append, SqliteStore.append, Registry.call  # pyright: ignore[reportPrivateUsage]
    early = dict[str, JsonValue | ResultWithArtifacts | Suspend]()
    announced = dict[int, tuple[Registry, list[Job]]]()

    def building(self: Run, transaction: Transaction, *, follows: bool, is_over: bool) -> Append:
        tools, append = self._context.performer._tools, build(self, transaction, follows=follows, is_over=is_over)  # pyright: ignore[reportPrivateUsage]
        assert isinstance(tools, Registry)
        announced[id(append)] = tools, transaction.jobs
        return append

    async def storing(self: SqliteStore, append: Append) -> Lease | None:
        tools, jobs = announced.pop(id(append))
        for job in jobs:
            key = f"{append.execution.execution_id}:{job.key}"
            if isinstance(job, CallJob) and job.call.effect == "effect" and job.kind == "call" and key not in early:
                context = CallContext(
                    execution_id=append.execution.execution_id,
                    step_id=job.call.step_id,
                    call_id=job.call.call_id,
                    idempotency_key=key,
                    definition_digest=job.definition.digest,
                )
                with suppress(PlanwardenError):
                    early[key] = await call(tools, job.call.tool_name, job.call.arguments or {}, context)
        return await store(self, append)

    async def calling(
        self: Registry, name: str, arguments: dict[str, JsonValue], context: CallContext
    ) -> JsonValue | ResultWithArtifacts | Suspend:
        if context.idempotency_key in early:
            return early.pop(context.idempotency_key)
        return await call(self, name, arguments, context)

    Run._build_append, SqliteStore.append, Registry.call = building, storing, calling  # pyright: ignore[reportPrivateUsage]


def count_the_living_as_dead() -> None:
    """An owner on another machine counts as dead whether or not its lock is held."""

    def counts_as_dead(self: LockLiveness, owner: str, *facts: bool, now: float, is_shaken: bool) -> bool:
        return owner not in self._control._owners  # pyright: ignore[reportPrivateUsage]

    LockLiveness._counts_as_dead = counts_as_dead  # pyright: ignore[reportPrivateUsage]


def count_nobody_as_dead() -> None:
    """A sign of life that never ends: whoever was killed is waited for as whoever is silent."""

    def counts_as_dead(self: LockLiveness, owner: str, *facts: bool, now: float, is_shaken: bool) -> bool:
        return False

    LockLiveness._counts_as_dead = counts_as_dead  # pyright: ignore[reportPrivateUsage]


def ignore_the_shared_fence() -> None:
    """As `ignore_the_fence`, on PostgreSQL."""
    ignore_the_fence()
    SHARED_SQL["confirm"] = SHARED_SQL["confirm"].replace("owner = $4 AND fence = $5", "(owner = $4 OR fence <> $5)")


def count_no_uses() -> None:
    """A grant lets calls through until its time is over."""

    def is_open(grant: Grant, now: float) -> bool:
        return grant.revoked_at is None and now < grant.expires_at

    def count_uses_left(grant: Grant, now: float) -> int:
        return grant.uses

    setattr(grants, "is_open", is_open)  # noqa: B010
    setattr(grants, "count_uses_left", count_uses_left)  # noqa: B010


PLANTS: dict[str, Callable[[], None]] = {
    "no-fence": ignore_the_fence,
    "no-lock": ignore_the_lock,
    "late-intent": commit_intents_late,
}
SHARED_PLANTS: dict[str, Callable[[], None]] = {
    "shared-no-death": count_nobody_as_dead,
    "shared-no-fence": ignore_the_shared_fence,
    "shared-no-lock": count_the_living_as_dead,
    "shared-no-count": count_no_uses,
}
"""On PostgreSQL."""
FORGOTTEN: dict[str, tuple[str, str]] = {
    "shared-no-fence": (
        "held.owner IS DISTINCT FROM a->>'lease_owner' OR held.fence <> (a->>'lease_fence')::bigint",
        "false",
    ),
    "shared-no-count": (">= (wanted->>1)::bigint", "IS NOT NULL"),
}
"""A condition in the database's own function `append_one`, and what stands there with the planted bug."""
