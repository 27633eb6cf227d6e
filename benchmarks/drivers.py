"""Which way of driving SQLite planwarden's writer takes: the standard library on the loop or a thread, or aiosqlite.

Both run the same statements, with the same parameters, in the same transactions, with the same pragmas: what the writer
ran for one execution of the job, with fresh ids. Three ways:

* `writer`: `planwarden.storage.sqlite.writer.Writer`. A transaction is one function, on the loop or on its thread.
* `aiosqlite`: one connection, a lock around each transaction, one await per statement, as its documentation shows.
* `aiosqlite, grouped`: one task owns the aiosqlite connection and commits together whatever waits, as the writer does.

No side takes the process lock that planwarden takes on older versions of SQLite. Run as
`python -m benchmarks.drivers [--json]`.
"""

import argparse
import asyncio
import gc
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import aiosqlite

from benchmarks.planwarden_side import DATABASE, resume_one, run_one, suspend_one, warden
from benchmarks.side import IN_FLIGHT
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.writer import Writer

SEQUENTIAL = 40
ROUNDS = 5
ROW = 1_000_000_000
"""A row number that is like no other number in the statements."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement with its parameters."""

    sql: str
    parameters: tuple[Any, ...]
    gives_rows: bool


Transaction = list[Statement]
Commit = Callable[[Transaction], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Recording:
    """The statements that the writer ran for one execution, and which parameters belong to that execution alone."""

    transactions: list[Transaction]
    execution_id: str
    thread_id: str
    suspension_id: str
    row: int

    def renamed(self, row: int) -> list[Transaction]:
        """Returns the same statements for another new execution."""
        execution_id = uuid4().hex
        names: dict[Any, Any] = {
            self.execution_id: execution_id,
            json.dumps([self.execution_id]): json.dumps([execution_id]),
            self.thread_id: uuid4().hex,
            self.suspension_id: uuid4().hex,
            self.row: row,
        }
        return [
            [
                Statement(entry.sql, tuple(names.get(value, value) for value in entry.parameters), entry.gives_rows)
                for entry in transaction
            ]
            for transaction in self.transactions
        ]


class _Connection(sqlite3.Connection):
    """Records the statements that run on it."""

    log: ClassVar[list[Statement]] = []

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor = super().execute(sql, parameters)
        self.log.append(Statement(sql, tuple(parameters), cursor.description is not None))
        return cursor


async def record(folder: Path) -> Recording:
    """Runs the job once and records what the writer runs."""
    original = database.connect

    def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
        connection = original(path, readonly=readonly)
        if readonly:
            return connection
        connection.close()
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=_Connection)

    database.connect = connect
    try:
        async with warden(folder) as opened:
            await run_one(opened)
            with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
                connection.execute("UPDATE executions SET number = ?", (ROW,))
            _Connection.log.clear()
            thread_id, suspension_id = await suspend_one(opened)
            await resume_one(opened, thread_id, suspension_id)
            execution_id = (await opened.get_execution(thread_id)).execution_id
            seen = list(_Connection.log)
    finally:
        database.connect = original
    transactions: list[Transaction] = []
    for statement in seen:
        if statement.sql.startswith("BEGIN"):
            transactions.append([])
        elif not statement.sql.startswith(("COMMIT", "PRAGMA")):
            transactions[-1].append(statement)
    return Recording(transactions, execution_id, thread_id, suspension_id, ROW + 1)


@asynccontextmanager
async def with_writer(path: Path) -> AsyncGenerator[Commit]:
    """Drives SQLite through planwarden's writer."""
    writer = Writer(database.connect(path), path)

    def perform(connection: sqlite3.Connection, transaction: Transaction) -> None:
        for statement in transaction:
            cursor = connection.execute(statement.sql, statement.parameters)
            if statement.gives_rows:
                cursor.fetchall()

    async def commit(transaction: Transaction) -> None:
        await writer.run(lambda connection: perform(connection, transaction))

    yield commit
    await writer.close()


@asynccontextmanager
async def with_aiosqlite(path: Path) -> AsyncGenerator[Commit]:
    """Runs one transaction after the other."""
    lock = asyncio.Lock()
    async with _opened(path) as connection:

        async def commit(transaction: Transaction) -> None:
            async with lock:
                await connection.execute("BEGIN IMMEDIATE")
                await _execute(connection, transaction)
                await connection.execute("COMMIT")

        yield commit


@asynccontextmanager
async def with_aiosqlite_grouped(path: Path) -> AsyncGenerator[Commit]:
    """Commits together whatever waits."""
    queue: asyncio.Queue[tuple[Transaction, asyncio.Future[None]]] = asyncio.Queue()
    async with _opened(path) as connection:

        async def write() -> None:
            while True:
                batch = [await queue.get()]
                while not queue.empty():
                    batch.append(queue.get_nowait())
                await connection.execute("BEGIN IMMEDIATE")
                for transaction, _ in batch:
                    await _execute(connection, transaction)
                await connection.execute("COMMIT")
                for _, done in batch:
                    done.set_result(None)

        async def commit(transaction: Transaction) -> None:
            done = asyncio.get_running_loop().create_future()
            queue.put_nowait((transaction, done))
            await done

        writer = asyncio.create_task(write())
        yield commit
        writer.cancel()


DRIVERS: dict[str, Callable[[Path], AbstractAsyncContextManager[Commit]]] = {
    "writer": with_writer,
    "aiosqlite": with_aiosqlite,
    "aiosqlite, grouped": with_aiosqlite_grouped,
}


async def compare(folder: Path, rounds: int = ROUNDS) -> dict[str, dict[str, list[float]]]:
    """Returns seconds per execution by driver, as lists `sequential` and `concurrent`; the drivers take turns."""
    recording = await record(folder / "recorded")
    found: dict[str, dict[str, list[float]]] = {name: {"sequential": [], "concurrent": []} for name in DRIVERS}
    rows = count(2 * ROW)
    for turn in range(rounds + 1):
        for name, driver in DRIVERS.items():
            path = folder / f"{name.replace(', ', '-')}.db"
            if turn == 0:
                with closing(database.connect(path)) as connection:
                    database.migrate(connection, path)
            planned = [recording.renamed(next(rows)) for _ in range(SEQUENTIAL + IN_FLIGHT)]
            async with driver(path) as commit:
                sequential = await _one_after_the_other(commit, planned[:SEQUENTIAL])
                concurrent = await _at_once(commit, planned[SEQUENTIAL:])
            _check(path, (turn + 1) * len(planned))
            # The first turn fills caches and is not counted.
            if turn > 0:
                found[name]["sequential"].append(sequential)
                found[name]["concurrent"].append(concurrent)
    return found


async def _one_after_the_other(commit: Commit, planned: Sequence[list[Transaction]]) -> float:
    gc.collect()
    start = time.perf_counter()
    for transactions in planned:
        await _run(commit, transactions)
    return (time.perf_counter() - start) / len(planned)


async def _at_once(commit: Commit, planned: Sequence[list[Transaction]]) -> float:
    gc.collect()
    start = time.perf_counter()
    await asyncio.gather(*(_run(commit, transactions) for transactions in planned))
    return (time.perf_counter() - start) / len(planned)


async def _run(commit: Commit, transactions: list[Transaction]) -> None:
    for transaction in transactions:
        await commit(transaction)


def _check(path: Path, expected: int) -> None:
    """Checks that every execution ended as the recorded one did; otherwise the statements did not do their work."""
    with closing(sqlite3.connect(path)) as connection:
        done = connection.execute("SELECT count(*) FROM executions WHERE status = 'completed'").fetchone()[0]
    if done != expected:
        raise RuntimeError(f"{done} executions of {expected} are complete in {path.name}; the recording does not fit")


@asynccontextmanager
async def _opened(path: Path) -> AsyncGenerator[aiosqlite.Connection]:
    async with aiosqlite.connect(path, isolation_level=None, cached_statements=256) as connection:
        await connection.execute(f"PRAGMA busy_timeout = {database.BUSY_TIMEOUT_MS}")
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
        await connection.execute("PRAGMA trusted_schema = OFF")
        yield connection


async def _execute(connection: aiosqlite.Connection, transaction: Transaction) -> None:
    """Awaits each statement once, whether it returns rows or not."""
    for statement in transaction:
        if statement.gives_rows:
            await connection.execute_fetchall(statement.sql, statement.parameters)
        else:
            await connection.execute(statement.sql, statement.parameters)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="raw seconds per execution, for the runner")
    parser.add_argument("--folder", type=Path, help="where to put the databases; the disk matters")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        found = asyncio.run(compare(Path(folder)))
    if chosen.json:
        print(json.dumps(found))
        return
    for name, modes in found.items():
        for mode, seconds in modes.items():
            middle = statistics.median(seconds)
            ratio = middle / statistics.median(found["writer"][mode])
            print(f"{name:20} {mode:12} {middle * 1e6:8.0f} us per execution  {ratio:5.2f} x thread")


if __name__ == "__main__":
    main()
