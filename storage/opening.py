"""Opens the store at a location. A process imports only the driver of the store that it opens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from planwarden.agent.common.errors import UsageError
from planwarden.agent.ports.store import Store
from planwarden.storage.location import StoreLocation
from planwarden.storage.sql.lookups import SqlLookups
from planwarden.storage.sql.notifications import HasNotifications
from planwarden.storage.sql.records import HasRecords
from planwarden.storage.sqlite import reader


class CompleteStore(Store, HasNotifications, HasRecords, Protocol):
    """A store with everything that planwarden stores, as commands and servers open it."""

    async def count_prunable(self, before: float) -> tuple[int, float | None]:
        """Return how many executions `prune` would delete, and when the oldest of them last changed."""
        ...

    async def check(self) -> dict[str, int | str]:
        """Return facts for a health report: `integrity`, `schema`, numbers of rows, `size_bytes`, perhaps `server`."""
        ...

    async def backup(self, target: Path) -> None:
        """Write a consistent copy at `target`. Raises `StoreError` if `target` exists or this store cannot make one."""
        ...


@asynccontextmanager
async def open_store(location: StoreLocation, policy: str = "") -> AsyncGenerator[CompleteStore]:
    """Yield the store, and close it at the end, even if the task was cancelled.

    `policy` is the digest of the policy under which this process writes to the audit.

    Raises:
        StoreError: the store cannot be reached, or must not be used.
        UsageError: what PostgreSQL needs is not installed.
    """
    opening = asyncio.create_task(anyio.to_thread.run_sync(_open, location))
    try:
        store = await asyncio.shield(opening)
        store.records.policy = policy
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            closing = asyncio.create_task(_close(opening))
            try:
                await asyncio.shield(closing)
            finally:
                # asyncio's own cancellations pass anyio's shield.
                await closing


def open_at_once(location: StoreLocation) -> SqlLookups | None:
    """Return lookups for a command that only reads. They never suspend, so the command needs no event loop.

    Return None if the whole store has to be opened: for PostgreSQL, and for a file whose schema is not the newest one.

    Raises:
        StoreError: as for `open_store`.
    """
    if location.path is None:
        return None
    return reader.open_lookups(location.path)


async def _close(opening: asyncio.Task[CompleteStore]) -> None:
    """Close the store, unless it could not be opened."""
    await asyncio.wait([opening])
    if opening.exception() is None:
        await opening.result().close()


def _open(location: StoreLocation) -> CompleteStore:
    if location.path is not None:
        from planwarden.storage.sqlite.store import SqliteStore

        return SqliteStore.open(location.path)
    try:
        from planwarden.storage.postgres.store import PostgresStore
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise UsageError("PostgreSQL needs more packages: pip install 'planwarden[postgres]'") from error
    return PostgresStore.open(location.url, control_url=location.control_url)
