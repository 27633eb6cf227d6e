"""The floor: only the commits. What a side costs above it is its own work.

One connection of the standard library, the same pragmas, one table. An execution is as many transactions as planwarden
makes for it; each inserts the same bytes that planwarden logs in it. Concurrently, one transaction takes the n-th
write of every execution: a group commit that nothing can beat, because it has no callers to wait for.
"""

import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio

from benchmarks.side import IN_FLIGHT, Side

BODIES = "bodies.json"
"""A list of texts in the side's folder, one per transaction of an execution."""


class Floor(Side):
    """Bare commits."""

    def __init__(self, connection: sqlite3.Connection, bodies: list[str]) -> None:
        self._connection = connection
        self._bodies = bodies

    async def run_one(self) -> None:
        self._commit(1)

    async def concurrent(self, count: int) -> None:
        for start in range(0, count, IN_FLIGHT):
            self._commit(min(IN_FLIGHT, count - start))

    def _commit(self, executions: int) -> None:
        for body in self._bodies:
            self._connection.execute("BEGIN IMMEDIATE")
            for _ in range(executions):
                self._connection.execute("INSERT INTO log (body) VALUES (?)", (body,))
            self._connection.execute("COMMIT")


@asynccontextmanager
async def open_side(_: str, place: str) -> AsyncGenerator[Floor]:
    """Open a fresh table in a folder, which holds `bodies.json`."""
    bodies: list[str] = json.loads(await anyio.Path(place, BODIES).read_text())
    with closing(sqlite3.connect(Path(place, "floor.db"), isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, body TEXT NOT NULL)")
        yield Floor(connection, bodies)
