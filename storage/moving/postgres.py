"""A PostgreSQL database as one side of a move, which locks every table against writers.

Every process that has the store open shares an advisory lock as long as its control connection stands. So the lock that
nobody shares proves that there is no such process; one that nobody saw waits for the tables, and then meets the mark.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import ClassVar

import psycopg
from psycopg import errors

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.audit import GENESIS
from planwarden.storage.location import StoreLocation
from planwarden.storage.mark import MoveMark
from planwarden.storage.moving.tables import MERGED, TABLES, Kind, MovedTable, Row
from planwarden.storage.postgres.audit import seal
from planwarden.storage.postgres.connection import IN_USE, MIGRATING, connect, migrate, name_server, run, store_error
from planwarden.storage.postgres.mark import clear_mark, read_mark, write_mark

ENDING_S = 2.0
"""Seconds for which a process that has ended may still seem to live."""
_TYPES: dict[Kind, str] = {"integer": "int8", "real": "float8", "text": "text", "blob": "bytea", "flag": "bool"}
_NAMES = [*(table.name for table in TABLES), *MERGED]
_SETTINGS = (
    "statement_timeout = 0",
    "idle_in_transaction_session_timeout = 0",
    "lock_timeout = '10s'",
    # One store must not be lost after the other one was marked.
    "synchronous_commit = on",
)
_USERS = """
SELECT coalesce(host(a.client_addr), 'its own machine') FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.pid <> pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (l.classid::bigint << 32) + l.objid::bigint = $1
ORDER BY 1
"""


class PostgresSide:
    """Implements `StoreSide`."""

    lacks: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, location: StoreLocation) -> None:
        """Raises `StoreError` when a process uses the store, or nobody may."""
        self.place = location.safe_url
        # A long transaction is nothing for a pooler.
        self._url = location.control_url or location.url
        self.name = name_server(self._url)
        with self._translating():
            self._connection = connect(self._url)
            try:
                self._take()
            except BaseException:
                self._connection.close()
                raise

    def _take(self) -> None:
        # Before the lock of migrations, which the other side of the move has if it is this very database.
        self._take_alone()
        if read_mark(self._connection) is None:
            migrate(self._connection, self._url)
        self._begin()

    def _begin(self) -> None:
        execute = self._connection.execute
        execute("BEGIN")
        for setting in _SETTINGS:
            execute(f"SET LOCAL {setting}".encode())
        self._take_alone()
        # Who opens the store meanwhile waits here, and then finds the mark.
        execute("SELECT pg_advisory_xact_lock($1)", (MIGRATING,))
        execute(f"LOCK TABLE {', '.join(_NAMES)} IN SHARE ROW EXCLUSIVE MODE".encode())
        if read_mark(self._connection) is None:
            seal(self._connection)

    def _take_alone(self) -> None:
        """Until the end of the transaction, this is the only process. Raises `StoreError` when it is not."""
        deadline = monotonic() + ENDING_S
        while self._connection.execute("SELECT pg_try_advisory_xact_lock($1)", (IN_USE,)).fetchone() != (True,):
            if monotonic() > deadline:
                raise self._describe_use()
            sleep(0.05)

    def _describe_use(self) -> StoreError:
        found = [str(row[0]) for row in self._connection.execute(_USERS.encode(), (IN_USE,)).fetchall()]
        places = f" on {', '.join(dict.fromkeys(found))}" if found else ""
        return StoreError(
            f"planwarden{places} has {self.name} open; end every planwarden process that uses it, then run move again; "
            "nothing was moved"
        )

    @contextmanager
    def _translating(self) -> Generator[None]:
        try:
            yield
        except errors.LockNotAvailable as error:
            raise StoreError(
                f"a table of {self.name} is in use; end every process that uses it, then run move again"
            ) from error
        except (psycopg.Error, UnicodeError) as error:
            raise store_error(error, self._url) from error

    def read_mark(self) -> MoveMark | None:
        with self._translating():
            return read_mark(self._connection)

    def write_mark(self, mark: MoveMark) -> None:
        with self._translating():
            write_mark(self._connection, mark, _NAMES)

    def clear_mark(self) -> None:
        with self._translating():
            clear_mark(self._connection)

    def count(self, table: MovedTable) -> int:
        with self._translating():
            row = self._connection.execute(f"SELECT count(*) FROM {table.name}".encode()).fetchone()
            return 0 if row is None else int(row[0])

    def read(self, table: MovedTable) -> Iterator[Row]:
        order = ", ".join(f'{name} COLLATE "C"' if table.columns.get(name) == "text" else name for name in table.order)
        rows = f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order}"
        with (
            self._translating(),
            self._connection.cursor() as cursor,
            cursor.copy(f"COPY ({rows}) TO STDOUT (FORMAT BINARY)".encode()) as copy,
        ):
            copy.set_types([_TYPES[kind] for kind in table.columns.values()])
            yield from copy.rows()

    def write(self, table: MovedTable, rows: Iterable[Row]) -> None:
        columns = [*table.columns, *table.fixed]
        types = [_TYPES[kind] for kind in table.columns.values()]
        fixed = tuple(table.fixed.values())
        statement = f"COPY {table.name} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
        with self._translating():
            with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                copy.set_types([*types, *("float8" if isinstance(value, float) else "text" for value in fixed)])
                for row in rows:
                    _refuse_nul(table, row)
                    copy.write_row((*row, *fixed))
            if "number" in table.columns:
                self._connection.execute(
                    f"SELECT setval(pg_get_serial_sequence('{table.name}', 'number'), max(number)) FROM {table.name} "
                    "HAVING max(number) > 0".encode()
                )

    def read_audit_end(self) -> tuple[int, str]:
        with self._translating():
            end = run(self._connection, "audit_end").fetchone()
            found = run(self._connection, "last_audit").fetchone()
        sequence, hash_ = (0, GENESIS) if found is None else (int(found[0]), bytes(found[1]))
        return 0 if end is None else int(end[0]), f"{sequence}:{hash_.hex()}"

    def write_audit_end(self, number: int) -> None:
        with self._translating():
            run(self._connection, "end_audit", (number,))

    def clear(self) -> None:
        names = ", ".join(name for name in _NAMES if name != "audit_state")
        with self._translating():
            self._connection.execute(f"TRUNCATE {names} RESTART IDENTITY".encode())
            run(self._connection, "end_audit", (0,))

    def commit(self) -> None:
        with self._translating():
            self._connection.execute("COMMIT")

    def begin(self) -> None:
        with self._translating():
            self._begin()

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()


def _refuse_nul(table: MovedTable, row: Row) -> None:
    """Raises `StoreError` for a text that PostgreSQL cannot hold, and names the row."""
    for (column, kind), value in zip(table.columns.items(), row, strict=True):
        if kind == "text" and isinstance(value, str) and "\0" in value:
            name = next(text for text in row if isinstance(text, str))
            raise StoreError(
                f"{column} of {name[:200]!r} among the {table.noun} has a NUL, which PostgreSQL cannot hold; "
                "nothing was moved"
            )
