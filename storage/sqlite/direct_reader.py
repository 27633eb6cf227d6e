"""Reads of the file on the caller's own thread, for a process in which nobody else waits: a command that only reads.

It needs no thread, and leaves none behind. A process that serves has `reader.py`.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from planwarden.agent.common.errors import StoreError
from planwarden.storage.clock import SystemClock
from planwarden.storage.locks import WriteLock
from planwarden.storage.sql.database import Rows
from planwarden.storage.sql.lookups import SqlLookups
from planwarden.storage.sqlite.database import FAULTS, connect, latest_version, leave_log, prepare, store_error
from planwarden.storage.sqlite.statements import SQL


class DirectReader:
    """Reads by the name of a statement and its parameters. Raises `StoreError` when the medium fails."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def read_version(self) -> int:
        """Return the version of the schema."""
        try:
            return int(self._read("user_version")[0][0])
        except StoreError:
            self.close_now()
            raise

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return self._read(name, parameters)

    async def fetch_long(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return self._read(name, parameters)

    async def fetch_all_long(self, *reads: tuple[str, Sequence[object]]) -> list[Rows]:
        self._execute("BEGIN")
        try:
            return [self._read(name, parameters) for name, parameters in reads]
        finally:
            if self._connection.in_transaction:
                self._execute("COMMIT")

    async def copy_into(self, target: sqlite3.Connection) -> None:
        self._connection.backup(target)

    def _read(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return self._execute(SQL[name], parameters)

    def _execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except FAULTS as error:
            raise store_error(error, self._path) from error

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        """Later reads are refused."""
        # Closing the last connection moves the log, which is a write. Who has the lock has a connection, too.
        place = self._path.with_name(self._path.name + ".lock")
        with suppress(StoreError), closing(WriteLock(place)) as lock, lock.held_if_free() as is_free:
            if is_free:
                self._connection.close()
                return
        leave_log(self._connection)
        self._connection.close()


def open_lookups(path: Path) -> SqlLookups | None:
    """Open a file to read from it, in a process that does nothing else at that time.

    None when its schema is not the newest one: opening the whole store then says why, or brings it up to date.

    Raises:
        StoreError: the file must not or cannot be used; it was left as it was.
    """
    prepare(path)
    reader = DirectReader(connect(path, readonly=True), path)
    if reader.read_version() == latest_version():
        return SqlLookups(reader, SystemClock())
    reader.close_now()
    return None
