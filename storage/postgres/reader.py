"""Connections that look things up, on threads: a few, because each costs the server a process."""

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
from planwarden.storage.postgres.connection import LOST, Connection, connect, run, store_error
from planwarden.storage.postgres.writer import PATIENCE_S, PAUSE_S
from planwarden.storage.sql.database import Rows

Result = TypeVar("Result")

CONNECTIONS = 2


class PostgresReader:
    """Reads by the name of a statement and its parameters. A read is repeated while the database cannot be reached."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._limiters: dict[asyncio.AbstractEventLoop, anyio.CapacityLimiter] = {}
        self._is_closed = False

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        """The rows. Raises `StoreError` when the database fails or the reader is closed."""
        return await self.use(lambda connection: run(connection, name, parameters).fetchall())

    async def use(self, work: Callable[[Connection], Result]) -> Result:
        """What `work` returns, which may be called again after the connection broke."""
        if self._is_closed:
            raise StoreError("the store is closed")
        loop = asyncio.get_running_loop()
        limiter = self._limiters.setdefault(loop, anyio.CapacityLimiter(CONNECTIONS))
        return await anyio.to_thread.run_sync(self._work, work, limiter=limiter)

    def _work(self, work: Callable[[Connection], Result]) -> Result:
        deadline = monotonic() + PATIENCE_S
        while True:
            try:
                return self._try(work)
            except (psycopg.Error, UnicodeError) as error:
                is_lost = isinstance(error, LOST) and not isinstance(error, psycopg.errors.DiskFull)
                if not is_lost or monotonic() > deadline or self._is_closed:
                    raise store_error(error, self._url) from error
                sleep(PAUSE_S)

    def _try(self, work: Callable[[Connection], Result]) -> Result:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = connect(self._url)
        try:
            result = work(connection)
        finally:
            # A connection that broke never serves again.
            if not connection.closed:
                self._idle.put(connection)
        return result

    async def close(self) -> None:
        """Later reads are refused."""
        self._is_closed = True
        while not self._idle.empty():
            with suppress(psycopg.Error):
                self._idle.get().close()
