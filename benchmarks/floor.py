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

from benchmarks.side import IN_FLIGHT, Side

BODIES = "bodies.json"
"""A list of texts in the side's folder, one per transaction of an execution."""


class Floor:
    """Bare commits."""

    def __init__(self, connection: sqlite3.Connection, bodies: list[str]) -> None:
        self._connection = connection
        self._bodies = bodies

    async def run(self, count: int, *, concurrent: bool) -> None:
        if concurrent:
            for start in range(0, count, IN_FLIGHT):
                for body in self._bodies:
                    self._commit([body] * min(IN_FLIGHT, count - start))
            return
        for _ in range(count):
            for body in self._bodies:
                self._commit([body])

    async def suspend(self, count: int) -> list[tuple[str, str]]:
        raise NotImplementedError("bare commits ask nobody")

    def _commit(self, bodies: list[str]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for body in bodies:
            self._connection.execute("INSERT INTO log (body) VALUES (?)", (body,))
        self._connection.execute("COMMIT")


@asynccontextmanager
async def open_side(name: str, folder: Path) -> AsyncGenerator[Side]:
    """A fresh table in `folder`, which holds `bodies.json`."""
    bodies: list[str] = json.loads((folder / BODIES).read_text())
    with closing(sqlite3.connect(folder / "floor.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, body TEXT NOT NULL)")
        yield Floor(connection, bodies)
