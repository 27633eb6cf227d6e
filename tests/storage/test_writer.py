"""The writer: what shares a transaction, what a bad operation may not spoil, what cancelling does not undo, and that
the event loop never waits for somebody else or for a slow disk. On the loop's thread and on the writer's own."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planwarden.agent.common.errors import StoreError, ThreadBusy
from planwarden.storage.sqlite import database, pace
from planwarden.storage.sqlite.writer import Writer
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


class Gate:
    """Stands in for the lock between processes: counts transactions and holds the first one until it is opened."""

    def __init__(self) -> None:
        self.transactions = 0
        self.is_reached = threading.Event()
        self._opened = threading.Event()
        self.is_refused = False
        """The system refuses it, and no look finds it free."""

    def open(self) -> None:
        self._opened.set()

    @contextmanager
    def held(self) -> Generator[None]:
        self.is_reached.set()
        assert self._opened.wait(60)
        self.transactions += 1
        if self.is_refused:
            raise StoreError("cannot lock")
        yield

    @contextmanager
    def held_if_free(self) -> Generator[bool]:
        is_free = self._opened.is_set() and not self.is_refused
        self.transactions += is_free
        yield is_free


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(params=["loop", "thread"], autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where commits run when nothing stands in their way."""
    monkeypatch.setattr(pace, "QUICK_S", 60.0 if request.param == "loop" else -1.0)


@pytest.fixture
async def writer(tmp_path: Path, gate: Gate) -> AsyncIterator[Writer]:
    path = tmp_path / "t.db"
    connection = database.connect(path)
    connection.execute("CREATE TABLE t (n INTEGER NOT NULL UNIQUE) STRICT")
    made = Writer(connection, path, lock=gate)
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


def refuse(connection: sqlite3.Connection) -> object:
    raise ThreadBusy("busy")


def stored(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        found = [int(row[0]) for row in connection.execute("SELECT n FROM t ORDER BY n")]
    connection.close()
    return found


async def waiting(writer: Writer, gate: Gate, *operations: Callable[[sqlite3.Connection], object]) -> list[object]:
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
    writer: Writer, gate: Gate, tmp_path: Path
) -> None:
    results = await waiting(writer, gate, *map(insert, range(1, 101)))
    assert results == list(range(1, 101))
    assert gate.transactions == 2
    assert stored(tmp_path / "t.db") == list(range(101))


@requirement("store:group-commit", "store:atomic")
@pytest.mark.parametrize("bad", [insert("not a number"), insert(0), insert(object()), refuse])
async def test_a_failing_operation_does_not_hurt_the_others_of_its_group(
    writer: Writer, gate: Gate, tmp_path: Path, bad: Callable[[sqlite3.Connection], object]
) -> None:
    def failing(connection: sqlite3.Connection) -> object:
        # What is refused has written nothing, and whatever else fails is rolled back.
        if bad is not refuse:
            insert(5)(connection)
        return bad(connection)

    first, failed, last = await waiting(writer, gate, insert(1), failing, insert(2))
    assert (first, last) == (1, 2)
    assert isinstance(failed, StoreError | TypeError | ThreadBusy)
    assert stored(tmp_path / "t.db") == [0, 1, 2]


@requirement("store:cancelled-caller")
async def test_cancelling_a_caller_takes_nobodys_transaction_away(writer: Writer, gate: Gate, tmp_path: Path) -> None:
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
    writer: Writer, gate: Gate, tmp_path: Path
) -> None:
    accepted = [asyncio.create_task(writer.run(insert(number))) for number in range(5)]
    await asyncio.sleep(0)
    gate.open()
    await writer.close()
    assert await asyncio.gather(*accepted) == list(range(5))
    with pytest.raises(StoreError, match="closed"):
        await writer.run(insert(9))
    assert stored(tmp_path / "t.db") == list(range(5))


@requirement("store:group-commit")
async def test_a_lock_that_nobody_gives_up_fails_the_whole_group_at_once(writer: Writer, gate: Gate) -> None:
    gate.is_refused = True
    tasks = [asyncio.create_task(writer.run(insert(number))) for number in range(20)]
    await asyncio.sleep(0)
    gate.open()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert all(isinstance(result, StoreError) for result in results) and gate.transactions <= 2


async def test_the_loop_never_waits_for_another_writer(writer: Writer, gate: Gate, tmp_path: Path) -> None:
    gate.open()
    other = sqlite3.connect(tmp_path / "t.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    turns = 0
    waiting = asyncio.create_task(writer.run(insert(1)))
    while turns < 100:
        await asyncio.sleep(0)
        turns += 1
    assert not waiting.done()
    other.execute("ROLLBACK")
    other.close()
    assert await waiting == 1
    assert stored(tmp_path / "t.db") == [1]
