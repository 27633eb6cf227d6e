"""A PostgreSQL database as one side of a move; the move locks every table against writers.

Every process that has the store open shares an advisory lock for as long as its control connection lives. So taking
that lock exclusively proves that there is no such process. A process whose control connection is broken escapes this
check, but it has to wait for the locked tables, and then finds the mark.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import errors

from planwarden.agent.common.errors import StoreError
from planwarden.storage.location import MARK_TABLE, MARKED, MoveMark, StoreLocation
from planwarden.storage.moving.tables import MERGED, PARTS, TABLES, Row, StoreSide
from planwarden.storage.postgres.connection import (
    IN_USE_LOCK,
    MIGRATION_LOCK,
    SQL,
    TRIGGER,
    connect,
    migrate,
    name_server,
    read_mark,
    to_store_error,
    write_mark,
)
from planwarden.storage.postgres.control_connection import seal

_NAMES = [*TABLES, *MERGED]
_SETTINGS = (
    "statement_timeout = 0",
    "idle_in_transaction_session_timeout = 0",
    # For this long, the server may still hold the locks of a process that has just ended.
    "lock_timeout = '2s'",
    # A crash must not undo this store's commit after the other store was marked.
    "synchronous_commit = on",
)


class PostgresSide(StoreSide):
    """A PostgreSQL database."""

    statements = SQL

    def __init__(self, location: StoreLocation) -> None:
        """Raise `StoreError` when another process is using the store, or when nobody may use it."""
        self.location = location.safe_url
        # A pooler is not made for a long transaction.
        self._url = location.control_url or location.url
        self.name = name_server(self._url)
        with self._translating():
            self._connection = connect(self._url)
            try:
                # Do this before taking `MIGRATION_LOCK`, which the other side holds if both sides are this database.
                self._take_alone()
                is_marked = read_mark(self._connection) is not None
                self._connection.execute("COMMIT")
                if not is_marked:
                    migrate(self._connection, self._url)
                self._take_alone()
                # A process that opens the store from now on waits for this lock, and then finds the mark.
                self._connection.execute("SELECT pg_advisory_xact_lock($1)", (MIGRATION_LOCK,))
                self._connection.execute(f"LOCK TABLE {', '.join(_NAMES)} IN SHARE ROW EXCLUSIVE MODE".encode())
                if not is_marked:
                    seal(self._connection)
            except BaseException:
                self._connection.close()
                raise

    def _take_alone(self) -> None:
        """Begin a transaction and take the lock that proves that no other process has the store open."""
        self._begin("BEGIN")
        self.execute("SELECT pg_advisory_xact_lock($1)", (IN_USE_LOCK,))

    def _begin(self, statement: str) -> None:
        for text in (statement, *(f"SET LOCAL {setting}" for setting in _SETTINGS)):
            self.execute(text)

    @contextmanager
    def _translating(self) -> Generator[None]:
        try:
            yield
        except errors.LockNotAvailable as error:
            raise self.describe_use() from error
        except (psycopg.Error, UnicodeError) as error:
            raise to_store_error(error, self._url) from error

    def read_mark(self) -> MoveMark | None:
        with self._translating():
            return read_mark(self._connection)

    def write_mark(self, mark: MoveMark) -> None:
        with self._translating():
            write_mark(self._connection, mark, _NAMES)

    def clear_mark(self) -> None:
        self.execute(f"DROP FUNCTION {TRIGGER} CASCADE")
        self.execute(f"DROP TABLE {MARK_TABLE}")
        self.execute("DELETE FROM schema_versions WHERE version = $1", (MARKED,))

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._translating():
            cursor = self._connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def columns(self, table: str) -> Sequence[str]:
        return list(self._read_types(table))

    def _read_types(self, table: str) -> dict[str, str]:
        statement = (
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        return {str(name): str(kind) for name, kind in self.execute(statement, (table,))}

    def read(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        types = self._read_types(table)
        statement = f"COPY (SELECT {', '.join(columns)} FROM {PARTS.get(table, table)}) TO STDOUT (FORMAT BINARY)"
        with (
            self._translating(),
            self._connection.cursor() as cursor,
            cursor.copy(statement.encode()) as copy,
        ):
            copy.set_types([types[column] for column in columns])
            for row in copy.rows():
                yield tuple(int(value) if isinstance(value, bool) else value for value in row)

    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        types = self._read_types(table)
        flags = [types[column] == "boolean" for column in columns]
        statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
        with self._translating():
            with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                copy.set_types([types[column] for column in columns])
                for row in rows:
                    _refuse_nul(table, columns, row)
                    copy.write_row([bool(value) if flag else value for value, flag in zip(row, flags, strict=True)])
            if "number" in columns:
                self._connection.execute(
                    f"SELECT setval(pg_get_serial_sequence('{table}', 'number'), max(number)) FROM {table} "
                    "HAVING max(number) > 0".encode()
                )

    def write_audit_end(self, number: int) -> None:
        self.execute(SQL["end_audit"], (number,))

    def clear(self) -> None:
        names = ", ".join(name for name in _NAMES if name != "audit_state" and name not in PARTS)
        for table, part in PARTS.items():
            self.execute(f"DELETE FROM {table} WHERE number IN (SELECT number FROM {part})")
        self.execute(f"TRUNCATE {names} RESTART IDENTITY")
        self.write_audit_end(0)

    def commit(self) -> None:
        # The commit drops the locks: from now on the mark keeps other processes away, or has been cleared.
        self._begin("COMMIT AND CHAIN")

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()


def _refuse_nul(table: str, columns: Sequence[str], row: Row) -> None:
    """Raise `StoreError`, which names the row, for a text that PostgreSQL cannot hold."""
    for column, value in zip(columns, row, strict=True):
        if isinstance(value, str) and "\0" in value:
            name = next(text for text in row if isinstance(text, str))
            raise StoreError(
                f"{column} of {name[:200]!r} among the {TABLES[table]} has a NUL, which PostgreSQL cannot hold; "
                "nothing was moved"
            )
