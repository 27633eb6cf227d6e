"""Planted bugs, switched on only in the campaign's own processes. A campaign that does not find them proves nothing."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core import events as ev
from planwarden.agent.ports.store import Append, Lease
from planwarden.storage.locks import LivenessFile
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.store import SqliteStore

LATE_S = 0.3


def ignore_the_fence() -> None:
    """An owner never notices that another process took its execution over, neither when it writes nor when it sends."""
    for name in {"extend_owned", "confirm"} & SQL.keys():
        SQL[name] = SQL[name].replace("owner = ? AND fence = ?", "(owner = ? OR fence <> ?)")


def ignore_the_lock() -> None:
    """An owner counts as dead whether or not its process holds its lock."""

    def is_dead(self: LivenessFile, owner: str) -> bool:
        return owner not in self._held  # pyright: ignore[reportPrivateUsage]

    LivenessFile.is_dead = is_dead


def commit_intents_late() -> None:
    """An intent is acknowledged at once and stored a moment later, when the effect may have happened."""
    append, late = SqliteStore.append, dict[str, asyncio.Task[None]]()

    async def store_later(store: SqliteStore, given: Append) -> None:
        await asyncio.sleep(LATE_S)
        with suppress(PlanwardenError):
            await append(store, given)

    async def appending(self: SqliteStore, given: Append) -> Lease | None:
        execution_id = given.execution.execution_id
        if execution_id in late:
            await late.pop(execution_id)
        is_intent = any(isinstance(recorded.event, ev.ToolCallIntended) for recorded in given.recorded)
        if not is_intent or given.lease is None or given.release:
            return await append(self, given)
        late[execution_id] = asyncio.create_task(store_later(self, given))
        return given.lease

    SqliteStore.append = appending  # pyright: ignore[reportAttributeAccessIssue]  # the parameter has another name


PLANTS: dict[str, Callable[[], None]] = {
    "no-fence": ignore_the_fence,
    "no-lock": ignore_the_lock,
    "late-intent": commit_intents_late,
}
