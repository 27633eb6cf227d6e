"""Planted bugs, switched on only in the campaign's own processes. A campaign that does not find them proves nothing."""

from collections.abc import Callable

import anyio

from planwarden.agent.core import events as ev
from planwarden.agent.ports.store import Append, Lease
from planwarden.storage.locks import LivenessFile
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.store import SqliteStore

LATE_S = 0.3


def ignore_the_fence() -> None:
    """An owner never notices that another process took its execution over."""
    SQL["extend_owned"] = SQL["extend_owned"].replace("AND owner = ? AND fence = ?", "AND (owner = ? OR fence <> ?)")


def ignore_the_lock() -> None:
    """An owner counts as dead whether or not its process holds its lock."""

    def is_dead(self: LivenessFile, owner: str) -> bool:
        return owner not in self._held  # pyright: ignore[reportPrivateUsage]

    LivenessFile.is_dead = is_dead


def commit_intents_late() -> None:
    """An intent is acknowledged at once and stored a moment later, when the effect may have happened."""
    append, pending = SqliteStore.append, dict[str, anyio.Event]()

    async def store_later(store: SqliteStore, given: Append, stored: anyio.Event) -> None:
        await anyio.sleep(LATE_S)
        await append(store, given)
        stored.set()

    async def appending(self: SqliteStore, given: Append) -> Lease | None:
        execution_id = given.execution.execution_id
        if execution_id in pending:
            await pending[execution_id].wait()
        is_intent = any(isinstance(recorded.event, ev.ToolCallIntended) for recorded in given.recorded)
        if not is_intent or given.lease is None or given.release:
            return await append(self, given)
        import asyncio

        pending[execution_id] = stored = anyio.Event()
        _LATE.add(asyncio.get_running_loop().create_task(store_later(self, given, stored)))
        return given.lease

    SqliteStore.append = appending  # pyright: ignore[reportAttributeAccessIssue]  # the parameter has another name


_LATE: set[object] = set()
"""Keeps the tasks alive that store late."""

PLANTS: dict[str, Callable[[], None]] = {
    "no-fence": ignore_the_fence,
    "no-lock": ignore_the_lock,
    "late-intent": commit_intents_late,
}
