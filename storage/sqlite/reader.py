"""Reads the file: looks up small answers on the caller's own thread, and runs long reads through aiosqlite.

A lookup in cached pages takes about 20 microseconds; handing it to a thread and back takes ten times as long. Each long
read opens its own connection and thread, and ends both, so that no thread stays behind and no other read waits.

`DirectReader` is for a process that may wait for every read, such as a command that only reads. It needs no thread.
"""

import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, cast

import anyio
import anyio.lowlevel

from planwarden.agent.common.errors import StoreError
from planwarden.storage.clock import SystemClock
from planwarden.storage.locks import WriteLock
from planwarden.storage.sql.database import Rows, is_unicode
from planwarden.storage.sql.lookups import SqlLookups
from planwarden.storage.sqlite.database import (
    FAULTS,
    SQL,
    connect,
    is_busy,
    latest_version,
    leave_log,
    prepare,
    store_error,
)
from planwarden.storage.sqlite.disk_pace import Pace

if TYPE_CHECKING:
    import aiosqlite

MAX_AT_ONCE = 64
"""The most rows that the caller's own thread reads; a longer answer is read again from the start, as a long read."""
READS_A_TURN = 16
"""After this many lookups by all callers together, the event loop gets a turn."""


class Reader:
    """Runs statements that read, by name and parameters. `check` raises when the file must no longer be used."""

    def __init__(self, connection: sqlite3.Connection, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self._connection = connection
        self._path = path
        self._check = check
        self._using = threading.Lock()
        self._pace = Pace()
        self._reads = 0
        self._is_closed = False
        connection.execute("PRAGMA busy_timeout = 0")

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        """Return the rows of a lookup. Raise `StoreError` when the medium failed or the reader is closed."""
        if not all(map(is_unicode, parameters)):
            return []
        self._reads += 1
        if self._reads % READS_A_TURN == 0:
            await anyio.lowlevel.checkpoint()
        if self._pace.is_quick:
            rows = self._look_up(SQL[name], parameters)
            return await self.fetch_long(name, parameters) if rows is None else rows
        began = perf_counter()
        rows = await self.fetch_long(name, parameters)
        self._pace.note_thread_wait(perf_counter() - began)
        return rows

    def _look_up(self, sql: str, parameters: Sequence[object]) -> Rows | None:
        """Return the rows; None for more than `MAX_AT_ONCE`, or when the file cannot be read without waiting."""
        self._check_open()
        began = perf_counter()
        try:
            with self._using:
                cursor = self._connection.execute(sql, parameters)
                rows = cursor.fetchmany(MAX_AT_ONCE + 1)
                cursor.close()
        except FAULTS as error:
            if is_busy(error):
                return None
            raise store_error(error, self._path) from error
        self._pace.note_loop_wait(perf_counter() - began)
        return rows if len(rows) <= MAX_AT_ONCE else None

    async def fetch_long(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        """Return the rows of a read that may take long."""
        if not all(map(is_unicode, parameters)):
            return []
        async with self._open() as connection:
            return cast("Rows", await connection.execute_fetchall(SQL[name], parameters))

    async def fetch_all_long(self, *reads: tuple[str, Sequence[object]]) -> list[Rows]:
        """Return the rows of several reads that may take long, a list for each read, all as of one moment."""
        async with self._open() as connection:
            await connection.execute("BEGIN")
            return [
                cast("Rows", await connection.execute_fetchall(SQL[name], parameters))
                if all(map(is_unicode, parameters))
                else []
                for name, parameters in reads
            ]

    async def copy_into(self, target: sqlite3.Connection) -> None:
        """Copy the database as of one moment, through SQLite's online backup, while others go on writing."""
        async with self._open() as connection:
            await connection.backup(target)

    @asynccontextmanager
    async def _open(self) -> "AsyncGenerator[aiosqlite.Connection]":
        """Yield a connection that only reads, on a thread of its own. Raise `StoreError` when it fails."""
        import aiosqlite

        self._check_open()
        connection = aiosqlite.Connection(lambda: connect(self._path, readonly=True), MAX_AT_ONCE)
        try:
            # If opening or closing were cancelled halfway, the thread and its connection would stay behind.
            with anyio.CancelScope(shield=True):
                await connection
            try:
                yield connection
            finally:
                with anyio.CancelScope(shield=True):
                    await connection.interrupt()
                    await connection.close()
        except FAULTS as error:
            raise store_error(error, self._path) from error

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")
        self._check()

    async def close(self) -> None:
        """Refuse later reads."""
        self._is_closed = True
        with self._using, suppress(sqlite3.Error):
            self._connection.close()


class DirectReader:
    """Runs statements that read, by name and parameters. Raises `StoreError` when the medium fails."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return self.read(name, parameters)

    async def fetch_long(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return self.read(name, parameters)

    async def fetch_all_long(self, *reads: tuple[str, Sequence[object]]) -> list[Rows]:
        self._execute("BEGIN")
        try:
            return [self.read(name, parameters) for name, parameters in reads]
        finally:
            if self._connection.in_transaction:
                self._execute("COMMIT")

    async def copy_into(self, target: sqlite3.Connection) -> None:
        self._connection.backup(target)

    def read(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return self._execute(SQL[name], parameters) if all(map(is_unicode, parameters)) else []

    def _execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except FAULTS as error:
            raise store_error(error, self._path) from error

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        """Close the connection, and refuse later reads."""
        # The last connection to close writes the log into the database. If others hold the lock, ours is not the last.
        path = self._path.with_name(self._path.name + ".lock")
        with suppress(StoreError), closing(WriteLock(path)) as lock, lock.held_if_free() as is_free:
            if is_free:
                self._connection.close()
                return
        leave_log(self._connection)
        self._connection.close()


def open_lookups(path: Path) -> SqlLookups | None:
    """Return lookups in a file, for a process that does nothing else while it reads.

    Return None if the file's schema is not the newest. Opening the whole store upgrades it then, or explains why not.

    Raises:
        StoreError: the file must not or cannot be used; it was left as it was.
    """
    prepare(path)
    reader = DirectReader(connect(path, readonly=True), path)
    with ExitStack() as opened:
        opened.callback(reader.close_now)
        if reader.read("user_version") != [(latest_version(),)]:
            return None
        opened.pop_all()
    return SqlLookups(reader, SystemClock())
