"""Commands that tend the store: `prune` and `backup`."""

from dataclasses import dataclass
from pathlib import Path

import anyio

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.server.settings.configuration import Settings
from planwarden.storage.sqlite.store import SqliteStore

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class PruneResult:
    executions: int
    days: int


def prune(settings: Settings, days: int | None) -> PruneResult:
    """Delete finished executions that have not changed for `days` (`[retention] days` when None); gives their number."""
    kept_days = settings.retention_days if days is None else days
    if kept_days < 0:
        raise InvalidArguments(f"--days is {kept_days}; it must be 0 or more")

    async def work() -> int:
        store = await _opened(settings)
        try:
            return await store.prune(store.clock.now() - kept_days * DAY_S)
        finally:
            await store.close()

    return PruneResult(executions=anyio.run(work) if settings.database.exists() else 0, days=kept_days)


def backup(settings: Settings, target: Path) -> int:
    """A consistent copy of the database while others go on writing; gives its size in bytes.

    Raises:
        StoreError: there is nothing to copy, or the target exists or cannot be written.
    """
    if not settings.database.exists():
        raise StoreError(f"there is no database in {str(settings.home)!r} yet; nothing to back up")

    async def work() -> None:
        store = await _opened(settings)
        try:
            await store.backup(target)
        finally:
            await store.close()

    anyio.run(work)
    return target.stat().st_size


async def _opened(settings: Settings) -> SqliteStore:
    return await anyio.to_thread.run_sync(SqliteStore.open, settings.database)
