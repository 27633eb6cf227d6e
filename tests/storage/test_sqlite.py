"""The SQLite file: modes, backups, dead owners, and damage: flipped bytes, edited rows, full disks, other files."""

import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from filelock import lock_descriptor

from planwarden.agent.common.errors import StoreError, StoreReplaced
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.server.cli.checks.store import replay_logs
from planwarden.storage.locks import LivenessFile, WriteLock
from planwarden.storage.sql.lookups import list_parameters
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.writer import Writer
from tests.harness.process import Worker
from tests.kit import ManualClock, SqliteStore, ev, first_only, requirement
from tests.storage.suite import Scribe, decided
from tests.support.forking import forked_command_line


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "planwarden.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(path, clock=ManualClock())
    yield opened
    await opened.close()


async def written(path: Path, count: int = 12) -> dict[str, tuple[ev.Recorded, ...]]:
    """A closed file with some finished and some suspended executions, and their logs."""
    store = SqliteStore.open(path, clock=ManualClock())
    logs: dict[str, tuple[ev.Recorded, ...]] = {}
    for number in range(count):
        scribe = Scribe.on(store, f"e{number}")
        await scribe.suspend(f"s{number}", arguments={"amount": number, "text": f"transfer {number} to nobody" * 8})
        if number % 2:
            await scribe.write(decided(f"s{number}"), ev.ExecutionFailed(code="x", message="y"))
        logs[f"e{number}"] = tuple(scribe.written)
    await store.close()
    return logs


def edit(path: Path, statement: str, *parameters: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, parameters)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(found.relative_to(folder)): found.read_bytes() for found in folder.rglob("*") if found.is_file()}


@requirement("sqlite:modes")
async def test_every_file_is_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        store = SqliteStore.open(path, clock=ManualClock())
        await Scribe.on(store, "e1").start()
        await store.backup(path.parent / "copy.db")
        modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in [path.parent, *path.parent.rglob("*")]}
        await store.close()
    finally:
        os.umask(before)
    assert {name: mode for name, mode in modes.items() if mode == 0o700} == {"home": 0o700, "owners": 0o700}
    assert {mode for name, mode in modes.items() if name not in ("home", "owners")} == {0o600}
    assert {"planwarden.db", "planwarden.db-wal", "planwarden.db-shm", "copy.db"} <= modes.keys()


@requirement("sqlite:modes")
@pytest.mark.parametrize(("others", "mode"), [([], 0o700), (["holiday.jpg"], 0o755), (["planwarden.db"], 0o755)])
def test_a_loose_folder_is_tightened_unless_others_live_in_it(tmp_path: Path, others: list[str], mode: int) -> None:
    tmp_path.chmod(0o755)
    for name in others:
        (tmp_path / name).touch()
    database.prepare(tmp_path / "planwarden.db")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode


def test_a_device_or_a_folder_is_refused_as_a_store_and_its_folder_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    tmp_path.chmod(0o755)
    for name in ("folder", "pipe"):
        with pytest.raises(StoreError, match="not a regular file"):
            database.prepare(tmp_path / name)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_every_commit_waits_until_the_disk_has_it(path: Path) -> None:
    database.prepare(path)
    with closing(database.connect(path)) as connection:
        settings = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "fullfsync")}
    assert settings == {"synchronous": 2, "fullfsync": 1}


@requirement("store:takeover")
@pytest.mark.slow
async def test_a_killed_owner_is_known_to_be_dead_although_its_lease_has_not_run_out(store: SqliteStore) -> None:
    holder = Worker("tests.crash.programs:hold", str(store.path.parent))
    assert holder.read() == "held"
    assert await store.orphans(10) == ()
    assert await store.claim("held", "p2") is None
    holder.kill()
    assert await store.orphans(10) == ("held",)
    taken = await store.claim("held", "p2")
    assert taken is not None and taken.fence == 2 and taken.silent_s is not None and not taken.is_from_silent


@requirement("sqlite:backup")
async def test_a_backup_taken_while_others_write_is_one_consistent_moment(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    copies = [tmp_path / "copies" / f"{number}.db" for number in range(4)]
    copies[0].parent.mkdir()
    stop = anyio.Event()

    async def keep_writing(writer: int) -> None:
        number = 0
        while not stop.is_set():
            await Scribe.on(store, f"e{writer}.{number}").suspend(f"s{writer}.{number}")
            number += 1

    async with anyio.create_task_group() as tasks:
        for writer in range(4):
            tasks.start_soon(keep_writing, writer)
        for copy in copies:
            await store.backup(copy)
        stop.set()
    sizes: list[int] = []
    for copy in copies:
        assert [found.name for found in copy.parent.glob(f"{copy.name}*")] == [copy.name]
        opened = SqliteStore.open(copy, clock=ManualClock())
        report = await replay_logs(opened, has_finished=True)
        assert report.faults == [] and (await opened.check())["integrity"] == "ok"
        sizes.append(report.executions)
        await opened.close()
    assert sizes == sorted(sizes)
    # One that is given up leaves nothing in the way of the next.
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.backup(tmp_path / "copy.db")
    assert scope.cancelled_caught and not (tmp_path / "copy.db").exists()


@requirement("sqlite:damage")
@pytest.mark.parametrize("flips", first_only(80, 400))
async def test_a_flipped_byte_or_a_cut_never_changes_an_answer_and_nothing_is_rewritten(
    path: Path, tmp_path: Path, flips: int
) -> None:
    logs = await written(path)
    intact = contents(path.parent)[path.name]
    # These two bytes choose between rollback journal and write-ahead log; SQLite may set them to the latter.
    offsets = [n for n, byte in enumerate(intact) if byte and n not in (18, 19)]
    damaged = {f"cut at {keep}": intact[: int(len(intact) / 4096 * keep) * 4096 + 100] for keep in (0.15, 0.5, 0.9)}
    for offset in random.Random(7).sample(offsets, flips):
        flipped = bytes((intact[offset] ^ 1 << offset % 8,))
        damaged[f"flipped at {offset}"] = intact[:offset] + flipped + intact[offset + 1 :]
    refused: list[str] = []
    for name, data in damaged.items():
        copy = tmp_path / name / path.name
        copy.parent.mkdir()
        copy.write_bytes(data)
        if await _fails_closed(copy, logs, name):
            refused.append(name)
        assert contents(copy.parent)[copy.name] == data, f"rewritten: {name}"
    assert len(refused) > flips / 3 and set(refused) >= set(list(damaged)[:3])


async def _fails_closed(path: Path, logs: dict[str, tuple[ev.Recorded, ...]], name: str) -> bool:
    """Whether anything was refused; raises when an answer was wrong."""
    try:
        store = SqliteStore.open(path, clock=ManualClock())
    except StoreError:
        return True
    is_refused = False
    for execution_id, log in logs.items():
        try:
            found = await store.read(execution_id)
        except StoreError:
            is_refused = True
            continue
        assert found in (log, ()), f"a wrong answer: {name}"
        if not found:
            # Only when the row that says that the execution exists is the damaged one.
            assert await store.header(execution_id) is None, f"a lost log: {name}"
    await store.close()
    return is_refused


NOT_WRITTEN = "not what was written"
ORDER = "SELECT position FROM events ORDER BY first LIMIT 1 OFFSET"


@requirement("sqlite:damage", "sqlite:gap")
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE events SET body = replace(body, 'amount', 'amoumt')", NOT_WRITTEN),
        ("UPDATE events SET at = at + 1", NOT_WRITTEN),
        ("UPDATE events SET body = 'x'", NOT_WRITTEN),
        ("DELETE FROM events", "does not say where"),
        # The logs of two executions change places.
        ("UPDATE events SET execution = execution - 3; UPDATE events SET execution = -execution", NOT_WRITTEN),
        *((f"DELETE FROM events WHERE position = ({ORDER} {n})", "missing|ends with|not say") for n in range(5)),
    ],
)
async def test_a_log_that_was_edited_cut_or_replaced_is_not_believed(path: Path, statement: str, message: str) -> None:
    await written(path, 2)
    for part in statement.split("; "):
        edit(path, part)
    store = SqliteStore.open(path, clock=ManualClock())
    with pytest.raises(StoreError, match=message):
        for execution_id in ("e0", "e1"):
            await store.read(execution_id)
    await store.close()


async def test_a_list_of_unfinished_executions_reads_no_finished_one(tmp_path: Path) -> None:
    operations: list[int] = []
    for count in (12, 48):
        path = tmp_path / f"{count}.db"
        await written(path, count)
        edit(path, "UPDATE executions SET status = 'completed', ended_at = updated_at")
        with closing(database.connect(path)) as connection:
            ticks = list[None]()
            connection.set_progress_handler(partial(ticks.append, None), 1)
            parameters = list_parameters(ExecutionFilter(status="running", principal="ann"), 25, None)
            assert connection.execute(database.SQL["list_executions"], parameters).fetchall() == []
        operations.append(len(ticks))
    assert operations[0] == operations[1] > 0


async def test_the_loop_goes_on_while_another_process_writes(path: Path, store: SqliteStore) -> None:
    scribe = Scribe.on(store, "e1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scribe.start)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert not scribe.written
            other.execute("ROLLBACK")
    assert await store.read("e1") == tuple(scribe.written)


@requirement("sqlite:full", "store:atomic")
async def test_a_transaction_that_does_not_fit_is_rolled_back_and_the_next_one_is_stored(path: Path) -> None:
    database.prepare(path)
    connection = database.connect(path)
    connection.execute("CREATE TABLE t (body TEXT)")
    connection.execute("PRAGMA max_page_count = 20")
    writer = Writer(connection, path)
    with pytest.raises(StoreError, match="the disk is full"):
        await writer.run(lambda t: t.connection.execute("INSERT INTO t VALUES (hex(randomblob(100000)))").rowcount)
    await writer.run(lambda t: t.connection.execute("INSERT INTO t VALUES ('small')").rowcount)
    assert await writer.run(lambda t: t.connection.execute("SELECT body FROM t").fetchall()) == [("small",)]
    await writer.close()
    with pytest.raises(StoreError, match="the store is closed"):
        await writer.run(lambda t: t.connection.execute("SELECT 1").fetchone())


@requirement("sqlite:read-only", "store:atomic")
async def test_a_connection_that_may_not_write_says_read_only(path: Path) -> None:
    await written(path, 1)
    reader = Writer(database.connect(path, readonly=True), path)
    with pytest.raises(StoreError, match="read-only"):
        await reader.run(lambda t: t.connection.execute("DELETE FROM executions").rowcount)
    await reader.close()


@requirement("sqlite:read-only")
def test_a_lock_that_another_process_keeps_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    holder, other = (WriteLock(tmp_path / "planwarden.db.lock", timeout_s=0.0) for _ in range(2))
    with holder.held(), pytest.raises(StoreError, match=r"planwarden\.db\.lock"), other.held():
        pass
    with other.held():
        pass
    holder.close()
    other.close()
    with pytest.raises(StoreError, match="cannot lock"), other.held_if_free():
        pass


@requirement("sqlite:damage")
async def test_an_id_that_is_not_text_names_nothing_and_is_refused_in_words(store: SqliteStore) -> None:
    assert await store.thread("\udcff") == ()
    with pytest.raises(StoreError, match="not Unicode"):
        await Scribe.on(store, "e1", thread_id="\udcff").start()
    assert await store.header("e1") is None


@pytest.mark.parametrize("owner", ["\0", "", "../planted", "a/b", "x" * 300], ids=repr)
def test_an_owner_edited_in_the_database_is_dead_and_touches_no_other_file(tmp_path: Path, owner: str) -> None:
    planted = tmp_path / "planted.alive"
    planted.touch()
    (tmp_path / "owners").mkdir()
    assert LivenessFile(tmp_path / "owners").is_dead(owner)
    assert planted.exists()


def test_an_owner_lives_whose_file_is_looked_at_while_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners, one, other = (LivenessFile(tmp_path / "owners") for _ in range(3))
    first: list[Callable[[], object]] = []

    def lock_later(descriptor: int, *, blocking: bool) -> bool:
        if first:
            first.pop()()
        return lock_descriptor(descriptor, blocking=blocking)

    monkeypatch.setattr("planwarden.storage.locks.lock_descriptor", lock_later)
    first.append(lambda: one.is_dead("made"))
    owners.announce("made")
    assert not one.is_dead("made")
    (tmp_path / "owners" / "again.alive").touch()
    # One looks, and before it locks what it sees, that file is deleted, and the owner makes another one.
    first.append(lambda: (other.is_dead("again"), owners.announce("again")))
    assert not one.is_dead("again") and not other.is_dead("again")
    owners.retire()


@requirement("sqlite:replaced")
@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_nothing_is_written_to_or_read_from_a_file_that_another_one_replaced(tmp_path: Path, how: str) -> None:
    path = tmp_path / "planwarden.db"
    store = SqliteStore.open(path)
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    if how == "removed":
        path.unlink()
    else:
        os.replace(shutil.copy(path, path.with_name("backup.db")), path)
    with pytest.raises(StoreReplaced, match="end every planwarden process"):
        await scribe.finish()
    with pytest.raises(StoreReplaced):
        await store.header("e1")
    await store.close()


@requirement("sqlite:replaced")
@pytest.mark.slow
def test_a_server_whose_database_was_replaced_ends_with_a_sentence(tmp_path: Path) -> None:
    command = forked_command_line("--home", str(tmp_path), "serve", "--http", "--port", "0")
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        path, lines = tmp_path / "planwarden.db", list[str]()
        for line in server.stderr:
            lines.append(line)
            if "http://" in line:
                break
        path.unlink()
        said = "".join([*lines, server.stderr.read()])
        assert server.wait(60) == 1
    finally:
        server.send_signal(signal.SIGKILL)
        server.stderr.close()
        server.wait()
    assert "was replaced or removed" in said and "Traceback" not in said
