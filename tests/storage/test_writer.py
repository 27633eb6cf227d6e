"""The writer: what shares a transaction, what a bad operation may not spoil, what cancelling does not undo, and that
the event loop never waits for somebody else or for a slow disk. On the loop's thread and on the writer's own."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from planwarden.agent.common.errors import StoreError, ThreadBusy
from planwarden.storage.locks import WriteLock
from planwarden.storage.sqlite import database, pace
from planwarden.storage.sqlite.writer import CHECKPOINT_ESTIMATE, CHECKPOINT_PAGES, MAX_GROUP, Writer
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


class Gate:
    """Stands in for the lock between processes: counts transactions and holds the first one until it is opened."""

    def __init__(self) -> None:
        self.transactions = 0
        self.is_reached = threading.Event()
        self._opened = threading.Event()
        self.threads: list[threading.Thread] = []
        """Where each transaction ran."""

    def open(self) -> None:
        self._opened.set()

    @contextmanager
    def held(self) -> Generator[None]:
        self.is_reached.set()
        assert self._opened.wait(60)
        self._count()
        yield

    @contextmanager
    def held_if_free(self) -> Generator[bool]:
        if self._opened.is_set():
            self._count()
        yield self._opened.is_set()

    def _count(self) -> None:
        self.transactions += 1
        self.threads.append(threading.current_thread())


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(params=["loop", "thread"], autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where commits run when nothing stands in their way."""
    monkeypatch.setattr(pace, "QUICK_S", 60.0 if request.param == "loop" else -1.0)
    return str(request.param)


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


@requirement("store:group-commit")
async def test_what_one_turn_of_the_loop_asks_for_is_one_transaction(
    writer: Writer, gate: Gate, tmp_path: Path
) -> None:
    gate.open()
    results = await asyncio.gather(*(writer.run(insert(number)) for number in range(100)))
    assert results == list(range(100))
    assert gate.transactions == 1
    assert stored(tmp_path / "t.db") == list(range(100))


@requirement("store:group-commit")
async def test_what_was_asked_for_in_the_turn_of_closing_is_committed(
    writer: Writer, gate: Gate, tmp_path: Path
) -> None:
    gate.open()
    asked = asyncio.create_task(writer.run(insert(1)))
    await asyncio.sleep(0)
    await writer.close()
    assert await asked == 1
    assert stored(tmp_path / "t.db") == [1]


@requirement("store:group-commit")
async def test_a_group_is_bounded(writer: Writer, gate: Gate, tmp_path: Path) -> None:
    await waiting(writer, gate, *map(insert, range(1, MAX_GROUP + 2)))
    assert gate.transactions == 3


@requirement("store:group-commit")
async def test_a_refused_operation_leaves_the_group_in_its_one_transaction(
    writer: Writer, gate: Gate, tmp_path: Path
) -> None:
    def refuse(connection: sqlite3.Connection) -> object:
        raise ThreadBusy("busy")

    before, refused, after = await waiting(writer, gate, insert(1), refuse, insert(2))
    assert (before, after) == (1, 2) and isinstance(refused, ThreadBusy)
    assert gate.transactions == 2
    assert stored(tmp_path / "t.db") == [0, 1, 2]


@requirement("store:group-commit", "store:atomic")
@pytest.mark.parametrize("bad", [insert("not a number"), insert(0), insert(object())])
async def test_a_failing_operation_does_not_hurt_the_others_of_its_group(
    writer: Writer, gate: Gate, tmp_path: Path, bad: Callable[[sqlite3.Connection], object]
) -> None:
    first, failed, last = await waiting(writer, gate, insert(1), lambda c: (insert(5)(c), bad(c)), insert(2))
    assert (first, last) == (1, 2)
    assert isinstance(failed, StoreError | TypeError)
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


@requirement("store:cancelled-caller")
async def test_who_asks_first_in_a_turn_and_gives_up_takes_nobodys_commit_away(
    writer: Writer, gate: Gate, tmp_path: Path
) -> None:
    gate.open()
    asked = [asyncio.create_task(writer.run(insert(number))) for number in range(3)]
    await asyncio.sleep(0)
    asked[0].cancel()
    first, *others = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError) and others == [1, 2]
    left = writer.run(insert(3))
    left.send(None)
    left.close()
    assert await writer.run(insert(4)) == 4
    assert stored(tmp_path / "t.db") == [0, 1, 2, 3, 4]


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
async def test_a_lock_that_nobody_gives_up_fails_the_whole_group_at_once(tmp_path: Path) -> None:
    tries: list[int] = []
    may_try, is_free = threading.Event(), threading.Event()

    class Stuck:
        @contextmanager
        def held(self) -> Generator[None]:
            tries.append(1)
            assert may_try.wait(60)
            if not is_free.is_set():
                raise StoreError("another process has held the lock")
            yield

        @contextmanager
        def held_if_free(self) -> Generator[bool]:
            yield False

    path = tmp_path / "t.db"
    writer = Writer(database.connect(path), path, lock=Stuck())
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
    path = tmp_path / "t.db"
    connection = database.connect(path)
    connection.execute("CREATE TABLE t (n INTEGER NOT NULL UNIQUE) STRICT")
    writer = Writer(connection, path, lock=gate)

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


@requirement("store:group-commit")
async def test_a_quick_commit_runs_on_the_event_loops_own_thread(writer: Writer, gate: Gate, place: str) -> None:
    gate.open()
    for number in range(5):
        await writer.run(insert(number))
    assert {thread is threading.current_thread() for thread in gate.threads} == {place == "loop"}


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


async def test_a_slow_disk_sends_commits_to_the_thread_until_it_is_quick_again(writer: Writer, gate: Gate) -> None:
    gate.open()
    now = 0.0
    writer.pace = pace.Pace(lambda: now)

    async def runs_here() -> bool:
        await writer.run(insert(len(gate.threads)))
        return gate.threads[-1] is threading.current_thread()

    writer.pace.note(1_000.0)
    assert not await runs_here()
    now = pace.REST_S
    writer.pace.note(1_000.0)
    now += pace.REST_S
    assert not await runs_here()
    now += pace.REST_S
    with anyio.fail_after(60):
        # On a busy machine the thread may have waited long, or may not have let go of the connection yet.
        writer.pace.note_elsewhere(0.0)
        while not await runs_here():
            writer.pace.note_elsewhere(0.0)


def test_a_disk_on_which_the_thread_waited_long_is_not_tried() -> None:
    now = 0.0
    disk = pace.Pace(lambda: now)
    disk.note(1_000.0)
    now = pace.MAX_REST_S
    disk.note_elsewhere(pace.TRY_S * 2)
    assert not disk.is_quick
    disk.note_elsewhere(pace.TRY_S / 2)
    assert disk.is_quick


async def test_the_thread_gives_the_connection_back_to_a_loop_that_can_commit(
    writer: Writer, gate: Gate, place: str
) -> None:
    await waiting(writer, gate, insert(1), insert(2))
    assert gate.threads[0] is not threading.current_thread()
    assert (gate.threads[-1] is threading.current_thread()) == (place == "loop")


async def test_a_large_operation_is_left_to_the_thread(writer: Writer, gate: Gate) -> None:
    gate.open()
    await writer.run(insert(1), is_large=True)
    assert gate.threads[-1] is not threading.current_thread()


async def test_the_log_is_moved_into_the_database_as_rows_come(writer: Writer, gate: Gate, tmp_path: Path) -> None:
    gate.open()
    for number in range(count := CHECKPOINT_ESTIMATE):
        await writer.run(insert(number))
    assert (tmp_path / "t.db-wal").stat().st_size < CHECKPOINT_PAGES * 4096 // 2
    assert len(stored(tmp_path / "t.db")) == count


async def test_a_lock_that_the_system_refuses_fails_the_request_instead_of_leaving_it_waiting(tmp_path: Path) -> None:
    class Refused:
        @contextmanager
        def held(self) -> Generator[None]:
            raise StoreError("cannot lock")
            yield

        @contextmanager
        def held_if_free(self) -> Generator[bool]:
            raise StoreError("cannot lock")
            yield

    path = tmp_path / "t.db"
    connection = database.connect(path)
    writer = Writer(connection, path, lock=Refused())
    with pytest.raises(StoreError, match="cannot lock"):
        await asyncio.wait_for(writer.run(insert(1)), 60)
    await writer.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_a_closed_descriptor_is_a_lock_that_the_system_refuses(tmp_path: Path) -> None:
    lock = WriteLock(tmp_path / "t.lock")
    lock.close()
    with pytest.raises(StoreError, match="cannot lock"), lock.held_if_free():
        pass
