"""The store without a disk: the same tables in a SQLite database in memory, for tests and throw-away use."""

import sqlite3
import weakref
from pathlib import Path
from typing import TypeVar

from planwarden.agent.ports.environment import Clock
from planwarden.storage.clock import LEASE_S, SystemClock
from planwarden.storage.sqlite.database import FAULTS, migrate, store_error
from planwarden.storage.sqlite.direct_reader import DirectReader
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.storage.sqlite.transaction import Operation, SqliteTransaction

Result = TypeVar("Result")

PLACE = Path(":memory:")


class MemoryStore(SqliteStore):
    """Keeps every law of the ports except durability.

    Several engines may share one instance, as processes share a file; it is used from one event loop.
    """

    def __init__(self, clock: Clock | None = None, *, lease_s: float = LEASE_S) -> None:
        connection = sqlite3.connect(PLACE, isolation_level=None, check_same_thread=False, cached_statements=256)
        weakref.finalize(self, connection.close)
        migrate(connection, PLACE)
        reader = DirectReader(connection, PLACE)
        super().__init__(PLACE, MemoryWriter(connection), reader, OneProcess(), clock or SystemClock(), lease_s)

    async def close(self) -> None:
        """Close nothing: the content stays for the next user of the instance."""


class MemoryWriter:
    """Commits on the caller's own thread, because nothing is waited for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def run(self, operation: Operation[Result], *, is_large: bool = False) -> Result:
        """Return the operation's result once it is committed. Raises as `Writer.run`."""
        try:
            self._connection.execute("BEGIN")
            try:
                result = operation(SqliteTransaction(self._connection))
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except FAULTS as error:
            raise store_error(error, PLACE) from error
        return result

    def read_foreign_changes(self) -> int:
        """Return a number that differs once any row was written: several engines share the connection."""
        return self._connection.total_changes

    async def close(self) -> None:
        """The connection stays open as long as the store."""


class OneProcess:
    """The owners of one process, which end together with the store."""

    def __init__(self) -> None:
        self._owners: set[str] = set()

    def announce(self, owner: str) -> None:
        self._owners.add(owner)

    def is_dead(self, owner: str) -> bool:
        return False

    def is_anyone_alive(self, prefix: str) -> bool:
        return any(owner.startswith(prefix) for owner in self._owners)

    def retire(self) -> None:
        self._owners.clear()
