"""A SQLite file as one side of a move, which holds the file for itself alone.

A process that has the file open shares a lock of it as long as it lives, also when it does nothing. So the lock that
admits nobody else proves that there is no such process. Who opens the file meanwhile waits for `WriteLock`.
"""

import os
import sqlite3
import struct
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.audit import GENESIS
from planwarden.storage.location import StoreLocation
from planwarden.storage.locks import WriteLock
from planwarden.storage.mark import MoveMark
from planwarden.storage.moving.tables import TABLES, MovedTable, Row
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.mark import clear_mark, read_mark, write_mark
from planwarden.storage.sqlite.statements import SQL

_SHARED = (0x4000_0002, 510)
"""Where in a file SQLite has the locks of those who have it open: https://sqlite.org/src/doc/trunk/src/os.h"""


@contextmanager
def open_sqlite_side(location: StoreLocation) -> "Generator[SqliteSide]":
    """Yields the store in the file. Raises `StoreError` when another process uses it, or nobody may."""
    assert location.path is not None
    database.prepare(location.path)
    lock = WriteLock(location.path.with_name(location.path.name + ".lock"))
    with closing(lock), lock.held(), closing(SqliteSide(location.safe_url, location.path)) as side:
        yield side


class SqliteSide:
    """Implements `StoreSide`."""

    lacks: ClassVar[frozenset[str]] = frozenset({"events.token"})

    def __init__(self, place: str, path: Path) -> None:
        self.place = place
        self.name = repr(str(path))
        self._path = path
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        with self._translating():
            connection = sqlite3.connect(self._path, isolation_level=None)
            try:
                if read_mark(connection) is None:
                    database.migrate(connection, self._path)
                # A commit is in the file then, with its mark in the header, and a copy of the file is the whole store.
                if connection.execute("PRAGMA journal_mode = DELETE").fetchone() != ("delete",):
                    raise self._describe_use()
                connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA fullfsync = ON")
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("BEGIN EXCLUSIVE")
            except BaseException as error:
                # The locks of this process would hide those of others.
                connection.close()
                if isinstance(error, sqlite3.Error) and database.is_busy(error):
                    raise self._describe_use() from error
                raise
            return connection

    def _describe_use(self) -> StoreError:
        who = self._find_user()
        process = "another process" if who is None else f"process {who}"
        return StoreError(
            f"{process} has {self.name} open; end every planwarden process that uses it, then run move again; "
            "nothing was moved"
        )

    def _find_user(self) -> int | None:
        """The id of a process that has the file open, where the system tells."""
        if sys.platform != "linux":
            return None
        import fcntl

        asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, *_SHARED, 0)
        with suppress(OSError), self._path.open("r+b") as file:
            kind, *_, process = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))
            return process if kind != fcntl.F_UNLCK and process > 0 else None
        return None

    @contextmanager
    def _translating(self) -> Generator[None]:
        try:
            yield
        except database.FAULTS as error:
            raise database.store_error(error, self._path) from error

    def read_mark(self) -> MoveMark | None:
        with self._translating():
            return read_mark(self._connection)

    def write_mark(self, mark: MoveMark) -> None:
        with self._translating():
            write_mark(self._connection, mark)

    def clear_mark(self) -> None:
        with self._translating():
            clear_mark(self._connection)

    def count(self, table: MovedTable) -> int:
        with self._translating():
            return int(self._connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0])

    def read(self, table: MovedTable) -> Iterator[Row]:
        names, order = ", ".join(table.columns), ", ".join(table.order)
        flags = [place for place, kind in enumerate(table.columns.values()) if kind == "flag"]
        with self._translating():
            for row in self._connection.execute(f"SELECT {names} FROM {table.name} ORDER BY {order}"):
                if flags:
                    row = tuple(bool(value) if place in flags else value for place, value in enumerate(row))
                yield row

    def write(self, table: MovedTable, rows: Iterable[Row]) -> None:
        fixed = {name: value for name, value in table.fixed.items() if f"{table.name}.{name}" not in self.lacks}
        names = ", ".join((*table.columns, *fixed))
        places = ", ".join("?" * (len(table.columns) + len(fixed)))
        values = tuple(fixed.values())
        with self._translating():
            self._connection.executemany(
                f"INSERT INTO {table.name} ({names}) VALUES ({places})", ((*row, *values) for row in rows)
            )

    def read_audit_end(self) -> tuple[int, str]:
        with self._translating():
            number = int(self._connection.execute(SQL["audit_end"]).fetchone()[0])
            found = self._connection.execute(SQL["last_audit"]).fetchone()
        sequence, hash_ = (0, GENESIS) if found is None else (int(found[0]), bytes(found[1]))
        return number, f"{sequence}:{hash_.hex()}"

    def write_audit_end(self, number: int) -> None:
        with self._translating():
            self._connection.execute("DELETE FROM sqlite_sequence WHERE name = 'audit'")
            self._connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('audit', ?)", (number,))

    def clear(self) -> None:
        with self._translating():
            for table in TABLES:
                self._connection.execute(f"DELETE FROM {table.name}")

    def commit(self) -> None:
        with self._translating():
            self._connection.execute("COMMIT")

    def begin(self) -> None:
        # A connection of its own has nothing in memory of what was written.
        self._connection.close()
        self._connection = self._open()

    def close(self) -> None:
        self._connection.close()
