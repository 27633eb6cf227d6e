"""A SQLite file as one side of a move; no other process uses the file during the move.

Each process that has the file open holds a shared lock on it, even while it does nothing. So taking that lock
exclusively proves that there is no such process. A process that opens the file later waits for `WriteLock`.
"""

import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from planwarden.storage.location import MARK_TABLE, MARKED, MoveMark, StoreLocation
from planwarden.storage.locks import WriteLock
from planwarden.storage.moving.tables import PARTS, TABLES, Row, StoreSide
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.database import SQL, read_mark

_SETTINGS = (
    "locking_mode = EXCLUSIVE",
    "synchronous = EXTRA",
    "fullfsync = ON",
    "trusted_schema = OFF",
)


@contextmanager
def open_sqlite_side(location: StoreLocation) -> "Generator[SqliteSide]":
    """Yield the store in the file. Raises `StoreError` when another process uses it or it must not be used."""
    assert location.path is not None
    database.prepare(location.path)
    lock = WriteLock(location.path.with_name(location.path.name + ".lock"))
    with closing(lock), lock.held(), closing(SqliteSide(location.safe_url, location.path)) as side:
        yield side


class SqliteSide(StoreSide):
    """A SQLite file."""

    statements = SQL

    def __init__(self, location: str, path: Path) -> None:
        self.location = location
        self.name = repr(str(path))
        self._path = path
        with self._translating():
            self._connection = sqlite3.connect(path, isolation_level=None)
            try:
                if read_mark(self._connection) is None:
                    database.migrate(self._connection, path)
                # Commits, and the mark in the header, then go into the file itself, so a copy of it is the whole store.
                if self._connection.execute("PRAGMA journal_mode = DELETE").fetchone() != ("delete",):
                    raise self.describe_use()
                for setting in _SETTINGS:
                    self._connection.execute(f"PRAGMA {setting}").fetchall()
                self._connection.execute("BEGIN EXCLUSIVE")
            except BaseException as error:
                self._connection.close()
                if isinstance(error, sqlite3.Error) and database.is_busy(error):
                    raise self.describe_use() from error
                raise

    @contextmanager
    def _translating(self) -> Generator[None]:
        try:
            yield
        except database.FAULTS as error:
            raise database.to_store_error(error, self._path) from error

    def read_mark(self) -> MoveMark | None:
        with self._translating():
            return read_mark(self._connection)

    def write_mark(self, mark: MoveMark) -> None:
        [(version,)] = self.execute("PRAGMA user_version")
        self.execute(f"CREATE TABLE {MARK_TABLE} (move_id TEXT, is_source INTEGER, place TEXT, version INTEGER) STRICT")
        values = (mark.move_id, mark.is_source, mark.location, version)
        self.execute(f"INSERT INTO {MARK_TABLE} VALUES (?, ?, ?, ?)", values)
        self.execute(f"PRAGMA user_version = {MARKED}")

    def clear_mark(self) -> None:
        [(version,)] = self.execute(f"SELECT version FROM {MARK_TABLE}")
        self.execute(f"DROP TABLE {MARK_TABLE}")
        self.execute(f"PRAGMA user_version = {int(version)}")

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._translating():
            return self._connection.execute(statement, parameters).fetchall()

    def columns(self, table: str) -> Sequence[str]:
        return [str(row[1]) for row in self.execute(f"PRAGMA table_info({table})")]

    def read(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        with self._translating():
            # After a failed move, `yield from` would close the cursor later than its connection.
            for row in self._connection.execute(f"SELECT {', '.join(columns)} FROM {PARTS.get(table, table)}"):  # noqa: UP028
                yield row

    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        markers = ", ".join("?" * len(columns))
        with self._translating():
            self._connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({markers})", rows)

    def write_audit_end(self, number: int) -> None:
        self.execute("DELETE FROM sqlite_sequence WHERE name = 'audit'")
        self.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('audit', ?)", (number,))

    def clear(self) -> None:
        for table in TABLES:
            condition = f" WHERE number IN (SELECT number FROM {PARTS[table]})" if table in PARTS else ""
            self.execute(f"DELETE FROM {table}{condition}")

    def commit(self) -> None:
        self.execute("COMMIT")
        self.execute("BEGIN EXCLUSIVE")

    def close(self) -> None:
        self._connection.close()
