"""The writer thread: what shares a transaction, what a bad operation may not spoil, and what cancelling does not
undo."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planwarden.agent.common.errors import StoreError, ThreadBusy
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.worker import MAX_GROUP, Worker
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


class Gate:
    """Stands in for the lock between processes: counts transactions and holds the first one until it is opened."""

    def __init__(self) -> None:
        self.transactions = 0
        self.is_reached = threading.Event()
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    @contextmanager
    def held(self) -> Generator[None]:
        self.transactions += 1
        self.is_reached.set()
        assert self._opened.wait(60)
        yield


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def writer(tmp_path: Path, gate: Gate) -> AsyncIterator[Worker]:
    path = tmp_path / "t.db"
    connection = database.connect(path)
    connection.execute("CREATE TABLE t (n INTEGER NOT NULL UNIQUE) STRICT")
    made = Worker(connection, path, group=True, lock=gate.held)
    try:
        yield made
    finally:
        gate.open()
        await made.close()


def insert(number: object) -> Callable[[sqlite3.Connection], object]:
    def operation(connection: sqlite3.Connection) -> object:
        connection.execute("INSERT INTO t VALUES (?)", (number,))
        return number

    return operation


def stored(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        found = [int(row[0]) for row in connection.execute("SELECT n FROM t ORDER BY n")]
    connection.close()
    return found


async def waiting(writer: Worker, gate: Gate, *operations: Callable[[sqlite3.Connection], object]) -> list[object]:
    """Results of operations that all waited while one transaction was held up."""
    first = asyncio.create_task(writer.run(insert(0)))
    await asyncio.to_thread(gate.is_reached.wait, 60)
    tasks = [asyncio.create_task(writer.run(operation)) for operation in operations]
    await asyncio.sleep(0)
    gate.open()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await first
    return list(results)


@requirement("store:group-commit")
async def test_everything_that_waits_is_committed_in_one_transaction(
    writer: Worker, gate: Gate, tmp_path: Path
) -> None:
    """spec: design.md, group commit"""
    results = await waiting(writer, gate, *map(insert, range(1, 101)))
    assert results == list(range(1, 101))
    assert gate.transactions == 2
    assert stored(tmp_path / "t.db") == list(range(101))


@requirement("store:group-commit")
async def test_what_one_turn_of_the_loop_asks_for_is_one_transaction(
    writer: Worker, gate: Gate, tmp_path: Path
) -> None:
    """ours: the thread is woken when the turn is over, not by the first request of it"""
    gate.open()
    results = await asyncio.gather(*(writer.run(insert(number)) for number in range(100)))
    assert results == list(range(100))
    assert gate.transactions == 1
    assert stored(tmp_path / "t.db") == list(range(100))


@requirement("store:group-commit")
async def test_what_was_asked_for_in_the_turn_of_closing_is_committed(
    writer: Worker, gate: Gate, tmp_path: Path
) -> None:
    """ours: closing does not overtake what the thread was not woken for yet"""
    gate.open()
    asked = asyncio.create_task(writer.run(insert(1)))
    await asyncio.sleep(0)
    await writer.close()
    assert await asked == 1
    assert stored(tmp_path / "t.db") == [1]


@requirement("store:group-commit")
async def test_a_group_is_bounded(writer: Worker, gate: Gate, tmp_path: Path) -> None:
    """ours: one caller's flood does not make everybody's commit endless"""
    await waiting(writer, gate, *map(insert, range(1, MAX_GROUP + 2)))
    assert gate.transactions == 3


@requirement("store:group-commit")
async def test_a_refused_operation_leaves_the_group_in_its_one_transaction(
    writer: Worker, gate: Gate, tmp_path: Path
) -> None:
    """ours: a refusal changes nothing, so nothing has to be repeated"""

    def refuse(connection: sqlite3.Connection) -> object:
        raise ThreadBusy("busy")

    before, refused, after = await waiting(writer, gate, insert(1), refuse, insert(2))
    assert (before, after) == (1, 2) and isinstance(refused, ThreadBusy)
    assert gate.transactions == 2
    assert stored(tmp_path / "t.db") == [0, 1, 2]


@requirement("store:group-commit", "store:atomic")
@pytest.mark.parametrize("bad", [insert("not a number"), insert(0), insert(object())])
async def test_a_failing_operation_does_not_hurt_the_others_of_its_group(
    writer: Worker, gate: Gate, tmp_path: Path, bad: Callable[[sqlite3.Connection], object]
) -> None:
    """spec: issue, group commit"""
    first, failed, last = await waiting(writer, gate, insert(1), lambda c: (insert(5)(c), bad(c)), insert(2))
    assert (first, last) == (1, 2)
    assert isinstance(failed, StoreError | TypeError)
    assert stored(tmp_path / "t.db") == [0, 1, 2]


@requirement("store:cancelled-caller")
async def test_cancelling_a_caller_takes_nobodys_transaction_away(writer: Worker, gate: Gate, tmp_path: Path) -> None:
    """spec: ports.Store; what was asked for may or may not be committed"""
    held_up = asyncio.create_task(writer.run(insert(1)))
    await asyncio.to_thread(gate.is_reached.wait, 60)
    queued = asyncio.create_task(writer.run(insert(2)))
    await asyncio.sleep(0)
    for task in (held_up, queued):
        task.cancel()
    results = await asyncio.gather(held_up, queued, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    gate.open()
    assert await writer.run(insert(3)) == 3
    assert await writer.run(lambda connection: connection.in_transaction) is True
    assert stored(tmp_path / "t.db") == [1, 2, 3]


@requirement("store:atomic")
async def test_a_closed_worker_finishes_what_is_queued_and_refuses_what_comes_later(
    writer: Worker, gate: Gate, tmp_path: Path
) -> None:
    """ours: closing loses nothing that was accepted"""
    accepted = [asyncio.create_task(writer.run(insert(number))) for number in range(5)]
    await asyncio.sleep(0)
    gate.open()
    await writer.close()
    assert await asyncio.gather(*accepted) == list(range(5))
    with pytest.raises(StoreError, match="closed"):
        await writer.run(insert(9))
    assert stored(tmp_path / "t.db") == list(range(5))


@requirement("store:group-commit")
async def test_a_lock_that_nobody_gives_up_fails_the_whole_group_at_once(tmp_path: Path) -> None:
    """ours: not every request waits for the lock once more"""
    tries: list[int] = []
    may_try, is_free = threading.Event(), threading.Event()

    @contextmanager
    def stuck() -> Generator[None]:
        tries.append(1)
        assert may_try.wait(60)
        if not is_free.is_set():
            raise StoreError("another process has held the lock")
        yield

    path = tmp_path / "t.db"
    writer = Worker(database.connect(path), path, group=True, lock=stuck)
    tasks = [asyncio.create_task(writer.run(insert(number))) for number in range(20)]
    await asyncio.sleep(0)
    may_try.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, StoreError) for result in results)
    assert len(tries) <= 2
    is_free.set()
    await writer.close()


@requirement("store:cancelled-caller")
def test_a_program_that_ends_without_closing_does_not_take_the_writer_with_it(tmp_path: Path, gate: Gate) -> None:
    """ours: the loop of a caller may be gone when its commit is done"""
    path = tmp_path / "t.db"
    connection = database.connect(path)
    connection.execute("CREATE TABLE t (n INTEGER NOT NULL UNIQUE) STRICT")
    writer = Worker(connection, path, group=True, lock=gate.held)

    async def gone() -> None:
        task = asyncio.create_task(writer.run(insert(1)))
        await asyncio.to_thread(gate.is_reached.wait, 60)
        task.cancel()

    async def later() -> object:
        gate.open()
        result = await writer.run(insert(2))
        await writer.close()
        return result

    asyncio.run(gone())
    assert asyncio.run(later()) == 2
    assert stored(path) == [1, 2]
