"""Connections for lookups, used on threads; there are only a few, because each one costs the server a process."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import TypeVar

import anyio
import anyio.to_thread
import psycopg

from planwarden.agent.common.errors import StoreError
from planwarden.storage.postgres.connection import LOST, Connection, connect, run, to_store_error
from planwarden.storage.postgres.writer import PAUSE_S, RETRY_TIMEOUT_S
from planwarden.storage.sql.database import Rows, is_encodable

Result = TypeVar("Result")

CONNECTIONS = 2


def may_be_stored(value: object) -> bool:
    """Return False for a text that no row can contain: one with a NUL or with half of a surrogate pair."""
    return is_encodable(value) and not (isinstance(value, str) and "\0" in value)


class PostgresReader:
    """Runs statements that read, by name and parameters. A read is tried again if the database cannot be reached."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._limiters: dict[asyncio.AbstractEventLoop, anyio.CapacityLimiter] = {}
        self._failure: Exception | None = None
        """Why the last read could not reach the database; None if it could."""
        self._is_closed = False

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        """Return the rows. Raises `StoreError` when the database fails or the reader is closed."""
        if not all(map(may_be_stored, parameters)):
            return []
        return await self.use(lambda connection: run(connection, name, parameters).fetchall())

    # Every read runs on a thread, so a long read needs nothing else.
    fetch_long = fetch

    async def fetch_all_long(self, *reads: tuple[str, Sequence[object]]) -> list[Rows]:
        """Return the rows of several reads, a list for each read, all as of one moment."""
        if not all(may_be_stored(value) for _, parameters in reads for value in parameters):
            return [[] for _ in reads]

        def read_all(connection: Connection) -> list[Rows]:
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                return [run(connection, name, parameters).fetchall() for name, parameters in reads]

        return await self.use(read_all)

    async def use(self, work: Callable[[Connection], Result]) -> Result:
        """Return the result of `work`, which is called again if the connection breaks."""
        if self._is_closed:
            raise StoreError("the store is closed")
        loop = asyncio.get_running_loop()
        limiter = self._limiters.setdefault(loop, anyio.CapacityLimiter(CONNECTIONS))
        return await anyio.to_thread.run_sync(self._work, work, monotonic() + RETRY_TIMEOUT_S, limiter=limiter)

    def _work(self, work: Callable[[Connection], Result], deadline: float) -> Result:
        while True:
            failure = self._failure
            if failure is not None and (monotonic() > deadline or self._is_closed):
                # Fail at once: else the reads that wait for a thread would wait for the database one after the other.
                raise to_store_error(failure, self._url) from failure
            try:
                result = self._try(work)
            except (psycopg.Error, UnicodeError) as error:
                if not isinstance(error, LOST) or isinstance(error, psycopg.errors.DiskFull):
                    raise to_store_error(error, self._url) from error
                self._failure = error
                sleep(PAUSE_S)
            else:
                self._failure = None
                return result

    def _try(self, work: Callable[[Connection], Result]) -> Result:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = connect(self._url)
        try:
            result = work(connection)
        except psycopg.InternalError as error:
            if not connection.closed:
                raise
            # A server may report its shutdown right after an answer, and libpq reads the two as one.
            raise psycopg.OperationalError(str(error)) from error
        finally:
            # A broken connection is not used again.
            if self._is_closed:
                connection.close()
            elif not connection.closed:
                self._idle.put(connection)
        return result

    async def close(self) -> None:
        """Refuse later reads, and close the connections."""
        self._is_closed = True
        while not self._idle.empty():
            with suppress(psycopg.Error):
                self._idle.get().close()
