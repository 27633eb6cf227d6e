"""Reads of the file: what one lookup finds at once, on the caller's own thread; what may take long on another one.

A lookup in cached pages takes some 20 microseconds, and handing it to a thread and back ten times as long. A long read
opens a connection of its own, so that no thread stays behind and nobody waits for it.

`DirectReader` is for a process in which nobody else waits: a command that only reads. It needs no thread.
"""

import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from planwarden.agent.common.errors import StoreError
from planwarden.storage.clock import SystemClock
from planwarden.storage.locks import WriteLock
from planwarden.storage.sql.database import Rows
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
from planwarden.storage.sqlite.pace import Pace

Result = TypeVar("Result")

MAX_AT_ONCE = 64
"""Rows that the caller's own thread reads; the rest of a longer answer is read like a long one."""
READS_A_TURN = 16
"""Lookups of all callers together after which the event loop has a turn."""


class Reader:
    """Reads by the name of a statement and its parameters. `check` raises when the file must not be used any more."""

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
        """Return the rows of a lookup. Raises `StoreError` when the medium failed or the reader is closed."""
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
        """None when there are more than `MAX_AT_ONCE` rows, or when the file cannot be read without waiting."""
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
        return await self._use(lambda direct: direct.read(name, parameters))

    async def fetch_all_long(self, *reads: tuple[str, Sequence[object]]) -> list[Rows]:
        """Return the rows of each of several such reads, all as of one moment."""
        return await self._use(lambda direct: direct.read_all(reads))

    async def copy_into(self, target: sqlite3.Connection) -> None:
        """Copy the database as of one moment, through SQLite's online backup, while others go on writing."""
        await self._use(lambda direct: direct.copy(target))

    async def _use(self, work: Callable[["DirectReader"], Result]) -> Result:
        """Return the result of `work`, which gets a connection of its own, on a thread; cancelling interrupts it."""
        self._check_open()
        connections: list[sqlite3.Connection] = []

        def run() -> Result:
            with closing(connect(self._path, readonly=True)) as connection:
                connections.append(connection)
                return work(DirectReader(connection, self._path))

        try:
            # The threads of all others may be taken by tools that block.
            return await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except anyio.get_cancelled_exc_class():
            for connection in connections:
                # It may be closed already.
                with suppress(sqlite3.ProgrammingError):
                    connection.interrupt()
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")
        self._check()

    async def close(self) -> None:
        """Later reads are refused."""
        self._is_closed = True
        with self._using, suppress(sqlite3.Error):
            self._connection.close()


class DirectReader:
    """Reads by the name of a statement and its parameters. Raises `StoreError` when the medium fails."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return self.read(name, parameters)

    fetch_long = fetch

    async def fetch_all_long(self, *reads: tuple[str, Sequence[object]]) -> list[Rows]:
        return self.read_all(reads)

    async def copy_into(self, target: sqlite3.Connection) -> None:
        self.copy(target)

    def copy(self, target: sqlite3.Connection) -> None:
        """Copy the database through SQLite's online backup."""
        with self._translating():
            self._connection.backup(target)

    def read(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        """Return the rows of a statement."""
        with self._translating():
            return self._connection.execute(SQL[name], parameters).fetchall()

    def read_all(self, reads: Sequence[tuple[str, Sequence[object]]]) -> list[Rows]:
        """Return the rows of each statement, all as of one moment."""
        with self._translating():
            self._connection.execute("BEGIN")
            try:
                return [self.read(name, parameters) for name, parameters in reads]
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")

    @contextmanager
    def _translating(self) -> Generator[None]:
        try:
            yield
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
    with ExitStack() as opened:
        opened.callback(reader.close_now)
        if reader.read("user_version")[0][0] != latest_version():
            return None
        opened.pop_all()
    return SqlLookups(reader, SystemClock())
