"""The SQLite file itself: modes, refusals, damage, disks that are full or read-only, backups, dead owners."""

import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import TASK_KINDS, AuditEntry
from planwarden.agent.core.fold import fold
from planwarden.agent.core.state import new_execution
from planwarden.storage.clock import ManualClock
from planwarden.storage.locks import LivenessFile, WriteLock
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.storage.sqlite.writer import Writer
from tests.harness.fault import run_on_mount
from tests.harness.process import WORKER
from tests.requirements import requirement
from tests.storage.suite import Scribe, decided
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio


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
    """Change the file behind planwarden's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, parameters)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(found.relative_to(folder)): found.read_bytes() for found in folder.rglob("*") if found.is_file()}


def replace_contents(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


# --- modes and migrations ---


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
def test_the_file_is_private_before_sqlite_opens_it(path: Path) -> None:
    database.prepare(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_size == 0


@requirement("sqlite:modes")
@pytest.mark.parametrize(("others", "mode"), [([], 0o700), (["holiday.jpg"], 0o755)])
def test_a_loose_folder_is_tightened_unless_other_things_live_in_it(
    tmp_path: Path, others: list[str], mode: int
) -> None:
    tmp_path.chmod(0o755)
    for name in others:
        (tmp_path / name).touch()
    database.prepare(tmp_path / "planwarden.db")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode


@requirement("sqlite:migrate")
async def test_an_empty_file_is_brought_to_the_newest_schema_once(path: Path) -> None:
    database.prepare(path)
    for _ in range(2):
        store = SqliteStore.open(path, clock=ManualClock())
        assert (await store.check())["schema"] == database.latest_version()
        await store.close()
    header = contents(path.parent)[path.name][:100]
    assert int.from_bytes(header[60:64], "big") == database.latest_version()
    assert int.from_bytes(header[68:72], "big") == database.APPLICATION_ID


@requirement("sqlite:migrate")
async def test_many_processes_may_create_the_file_at_the_same_time(path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        stores = list(threads.map(SqliteStore.open, [path] * 8))
    for number, store in enumerate(stores):
        await Scribe.on(store, f"e{number}").finish()
    for store in stores:
        assert (await store.check())["executions"] == 8
    for store in stores:
        await store.close()


@requirement("sqlite:migrate")
async def test_a_crash_before_the_first_checkpoint_leaves_a_file_that_opens(path: Path, tmp_path: Path) -> None:
    database.prepare(path)
    connection = database.connect(path)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("PRAGMA user_version = 0")
    connection.execute("COMMIT")
    crashed = tmp_path / "crashed"
    shutil.copytree(path.parent, crashed)
    connection.close()
    store = SqliteStore.open(crashed / path.name, clock=ManualClock())
    await Scribe.on(store, "e1").finish()
    await store.close()


@requirement("store:reopen")
async def test_what_was_acknowledged_is_there_after_reopening(path: Path) -> None:
    logs = await written(path)
    store = SqliteStore.open(path, clock=ManualClock())
    for execution_id, log in logs.items():
        assert await store.read(execution_id) == log
    assert [row.suspension_id for row in (await store.suspensions()).rows] == [f"s{n}" for n in range(0, 12, 2)]
    await store.close()


@requirement("sqlite:migrate-rows")
async def test_a_file_of_an_earlier_schema_is_brought_forward_with_its_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = await written(path)
    newer = [*database.migrations(), "ALTER TABLE executions ADD COLUMN region TEXT;\nDROP INDEX finished_executions;"]
    monkeypatch.setattr(database, "migrations", lambda: newer)
    store = SqliteStore.open(path, clock=ManualClock())
    assert (await store.check())["schema"] == len(newer)
    for execution_id, log in logs.items():
        assert await store.read(execution_id) == log
    await store.close()


@requirement("replay:upgrade")
async def test_an_upgrade_that_could_not_continue_an_execution_is_rolled_back_and_names_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(path)
    store = SqliteStore.open(path, clock=ManualClock())
    for name, is_finished in (("unproven", False), ("over", True)):
        scribe = Scribe.on(store, name)
        await scribe.start()
        await scribe.write(ev.StepCompleted(step_id="a", validation="passed"))
        if is_finished:
            await scribe.write(ev.ExecutionCompleted())
    await store.close()
    before = database.migrations()
    with monkeypatch.context() as changed:
        newer = [*before, "ALTER TABLE executions ADD COLUMN region TEXT;"]
        changed.setattr(database, "migrations", lambda: newer)
        with pytest.raises(StoreError) as caught:
            SqliteStore.open(path, clock=ManualClock())
    text = caught.value.message
    assert "was not upgraded and nothing was written" in text and "'over'" not in text
    assert "execution 'unproven' (thread 'thread of unproven') from event 4 (StepCompleted) on: " in text
    store = SqliteStore.open(path, clock=ManualClock())
    assert (await store.check())["schema"] == len(before)
    await store.close()


@requirement("sqlite:migrate-rows")
async def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = await written(path)
    real = database.migrations()
    broken = [*real, "ALTER TABLE executions ADD COLUMN region TEXT;\nDROP TABLE no_such_table;"]
    monkeypatch.setattr(database, "migrations", lambda: broken)
    with pytest.raises(StoreError):
        SqliteStore.open(path, clock=ManualClock())
    monkeypatch.setattr(database, "migrations", lambda: real)
    store = SqliteStore.open(path, clock=ManualClock())
    for execution_id, log in logs.items():
        assert await store.read(execution_id) == log
    await store.close()


# --- refusals ---


def _newer(path: Path) -> None:
    edit(path, f"PRAGMA user_version = {database.latest_version() + 1}")


def _other_application(path: Path) -> None:
    edit(path, "PRAGMA application_id = 42")


def _no_application(path: Path) -> None:
    path.unlink()
    edit(path, "CREATE TABLE bookmarks (url TEXT)")
    edit(path, "PRAGMA user_version = 1")


def _no_application_nor_version(path: Path) -> None:
    path.unlink()
    edit(path, "CREATE TABLE bookmarks (url TEXT)")


def _text(path: Path) -> None:
    path.write_text("Dear diary, " * 100, encoding="utf-8")


def _cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def _garbage_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])


@requirement("sqlite:refused-untouched", "sqlite:damage")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_newer, "newer planwarden"),
        (_other_application, "another application"),
        (_no_application, "another application"),
        (_no_application_nor_version, "another application"),
        (_text, "not a planwarden database"),
        (_cut_header, "not a planwarden database"),
        (_garbage_header, "not a planwarden database"),
    ],
)
async def test_a_file_that_is_not_ours_to_use_is_refused_and_no_byte_changes(
    path: Path, make: object, message: str
) -> None:
    await written(path, 1)
    for extra in (path.with_name(f"{path.name}.lock"), path.parent / "owners"):
        shutil.rmtree(extra) if extra.is_dir() else extra.unlink(missing_ok=True)
    assert callable(make)
    make(path)
    before = contents(path.parent)
    assert list(before) == [path.name]
    with pytest.raises(StoreError, match=message):
        SqliteStore.open(path, clock=ManualClock())
    assert contents(path.parent) == before


@requirement("sqlite:refused-untouched")
@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "afpfs", "davfs", "ceph"])
def test_a_network_file_system_is_refused_before_the_file_exists(path: Path, kind: str) -> None:
    home = str(path.parent.parent).replace(" ", "\\040")
    with pytest.raises(StoreError, match="network file system"):
        database.prepare(path, mounts=lambda: f"/ ext4\n{home} {kind}\n/elsewhere ext4")
    assert not path.exists()


@requirement("sqlite:refused-untouched")
@pytest.mark.parametrize("mounts", ["", "/ ext4", "/ nfs4\nHOME ext4", "/ btrfs\n/home/other nfs", "HOME fuse.lxcfs"])
def test_a_local_file_system_is_accepted_also_below_or_beside_a_remote_one(path: Path, mounts: str) -> None:
    database.prepare(path, mounts=lambda: mounts.replace("HOME", str(path.parent.parent)))
    assert path.exists()


# --- damage ---


@requirement("sqlite:damage")
async def test_a_flipped_byte_anywhere_never_changes_an_answer(path: Path, tmp_path: Path) -> None:
    logs = await written(path)
    intact = contents(path.parent)[path.name]
    # These two bytes choose between rollback journal and write-ahead log; SQLite may set them to the latter.
    offsets = [n for n, byte in enumerate(intact) if byte and n not in (18, 19)]
    refused = 0
    for offset in random.Random(7).sample(offsets, 250):
        copy = tmp_path / f"copy {offset}" / path.name
        damaged = bytearray(intact)
        damaged[offset] ^= 1 << offset % 8
        replace_contents(copy, bytes(damaged))
        refused += await _fails_closed(copy, logs, offset)
        assert contents(copy.parent)[copy.name] == damaged, f"rewritten after byte {offset} was flipped"
    assert refused > 100


async def _fails_closed(path: Path, logs: dict[str, tuple[ev.Recorded, ...]], offset: int) -> bool:
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
        assert found in (log, ()), f"a wrong answer after byte {offset} was flipped"
        if not found:
            # Only when the row that says that the execution exists is the damaged one.
            assert await store.header(execution_id) is None, f"a lost log after byte {offset} was flipped"
    await store.close()
    return is_refused


@requirement("sqlite:damage")
@pytest.mark.parametrize("keep", [0.15, 0.5, 0.9])
async def test_a_truncated_file_is_a_store_error_and_is_not_rewritten(path: Path, keep: float) -> None:
    logs = await written(path)
    whole = contents(path.parent)[path.name]
    pages = int(len(whole) / 4096 * keep)
    damaged = whole[: pages * 4096 + 100]
    replace_contents(path, damaged)
    assert await _fails_closed(path, logs, pages)
    assert contents(path.parent)[path.name] == damaged


@requirement("sqlite:damage")
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE events SET body = replace(body, 'amount', 'amoumt')", "not what was written"),
        ("UPDATE events SET at = at + 1", "not what was written"),
        ("UPDATE events SET body = 'x'", "not what was written"),
        ("DELETE FROM events", "does not say where"),
    ],
)
async def test_an_edited_log_is_not_believed(path: Path, statement: str, message: str) -> None:
    await written(path, 1)
    edit(path, statement)
    store = SqliteStore.open(path, clock=ManualClock())
    with pytest.raises(StoreError, match=message):
        await store.read("e0")
    await store.close()


@requirement("sqlite:gap")
@pytest.mark.parametrize("missing", range(4))
async def test_a_missing_transaction_is_noticed_wherever_it_was(path: Path, missing: int) -> None:
    store = SqliteStore.open(path, clock=ManualClock())
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    await scribe.suspend("s1")
    await scribe.write(decided("s1"))
    await scribe.write(ev.ToolFailed(call_id="a:1", code="x", message="y"))
    edit(
        path,
        f"DELETE FROM events WHERE position = (SELECT position FROM events ORDER BY first LIMIT 1 OFFSET {missing})",
    )
    with pytest.raises(StoreError, match=r"missing before|it ends with|does not say"):
        await store.read("e1")
    await store.close()


@requirement("sqlite:gap")
async def test_logs_that_were_swapped_are_not_taken_for_each_other(path: Path) -> None:
    await written(path, 3)
    edit(path, "UPDATE events SET execution = CASE execution WHEN 1 THEN -3 WHEN 3 THEN -1 ELSE execution END")
    edit(path, "UPDATE events SET execution = abs(execution)")
    store = SqliteStore.open(path, clock=ManualClock())
    with pytest.raises(StoreError, match="not what was written"):
        await store.read("e0")
    assert len(await store.read("e1")) > 0
    await store.close()


# --- disks ---


@requirement("sqlite:full")
@pytest.mark.slow
def test_a_full_disk_is_an_error_that_loses_nothing_and_passes(tmp_path: Path) -> None:
    said = run_on_mount(tmp_path, f"mount -t tmpfs -o size=2m tmpfs {tmp_path}", "tests.crash.programs:fill_the_disk")
    assert "the disk is full" in str(said["error"])
    acknowledged = said["acknowledged"]
    assert isinstance(acknowledged, int) and acknowledged > 10
    assert (said["readable"], said["survived"], said["integrity"]) == (acknowledged, acknowledged + 1, "ok")


@requirement("sqlite:full", "store:atomic")
async def test_a_transaction_that_does_not_fit_is_rolled_back_and_the_next_one_is_stored(path: Path) -> None:
    database.prepare(path)
    connection = database.connect(path)
    connection.execute("CREATE TABLE t (body TEXT)")
    connection.execute("PRAGMA max_page_count = 20")
    writer = Writer(connection, path)
    with pytest.raises(StoreError, match="the disk is full"):
        await writer.run(lambda c: c.execute("INSERT INTO t VALUES (hex(randomblob(100000)))").rowcount)
    await writer.run(lambda c: c.execute("INSERT INTO t VALUES ('small')").rowcount)
    assert await writer.run(lambda c: c.execute("SELECT body FROM t").fetchall()) == [("small",)]
    await writer.close()


@requirement("sqlite:read-only")
@pytest.mark.slow
@pytest.mark.parametrize("exists", [True, False])
async def test_a_read_only_disk_is_an_error_that_says_so(tmp_path: Path, exists: bool) -> None:
    if exists:
        await written(tmp_path / "planwarden.db", 1)
    before = contents(tmp_path)
    mount = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path}"
    said = run_on_mount(tmp_path, mount, "tests.crash.programs:open_only")
    assert "ead-only" in str(said["error"])
    assert contents(tmp_path) == before


@requirement("sqlite:read-only")
def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="PLANWARDEN_HOME"):
        SqliteStore.open(tmp_path / "file" / "planwarden.db")


@requirement("sqlite:read-only", "store:atomic")
async def test_a_connection_that_may_not_write_says_read_only(path: Path) -> None:
    await written(path, 1)
    reader = Writer(database.connect(path, readonly=True), path)
    with pytest.raises(StoreError, match="read-only"):
        await reader.run(lambda connection: connection.execute("DELETE FROM executions").rowcount)
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


# --- backups ---


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
        headers = await opened.executions(None, 10_000)
        for header in headers:
            state = fold(
                new_execution(header.execution_id, header.thread_id, header.principal),
                await opened.read(header.execution_id),
            )
            assert (state.version, state.status) == (header.version, header.status)
        assert (await opened.check())["integrity"] == "ok"
        sizes.append(len(headers))
        await opened.close()
    assert sizes == sorted(sizes)


@requirement("sqlite:backup")
async def test_a_backup_never_overwrites(store: SqliteStore, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious", encoding="utf-8")
    with pytest.raises(StoreError, match="exists already"):
        await store.backup(target)
    with pytest.raises(StoreError, match="cannot write"):
        await store.backup(tmp_path / "nowhere" / "copy.db")
    assert target.read_text(encoding="utf-8") == "precious"


# --- owners ---


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns the running execution `held`."""
    process = subprocess.Popen(
        [*WORKER, "tests.crash.programs:hold", str(path.parent)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    assert json.loads(process.stdout.readline()) == "held"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()


@requirement("store:takeover")
@pytest.mark.slow
async def test_a_killed_owner_is_known_to_be_dead_although_its_lease_has_not_run_out(
    holder: subprocess.Popen[str], store: SqliteStore
) -> None:
    assert await store.orphans(10) == ()
    assert await store.claim("held", "p2") is None
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert await store.orphans(10) == ("held",)
    taken = await store.claim("held", "p2")
    assert taken is not None and taken.fence == 2 and taken.left_s is not None and not taken.is_from_silent


@requirement("store:takeover")
async def test_an_owner_that_closed_its_store_is_gone_and_a_living_one_is_not(path: Path) -> None:
    one, two = (SqliteStore.open(path, clock=ManualClock()) for _ in range(2))
    await Scribe.on(one, "e1", owner="first").start()
    await Scribe.on(two, "e2", owner="second").start()
    assert await one.orphans(10) == await two.orphans(10) == ()
    await one.close()
    assert await two.orphans(10) == ("e1",)
    assert not (path.parent / "owners" / "first.alive").exists()
    await two.close()


@requirement("sqlite:damage")
async def test_an_id_that_is_not_text_is_refused_in_words(store: SqliteStore) -> None:
    with pytest.raises(StoreError, match="not Unicode"):
        await store.thread("\udcff")
    with pytest.raises(StoreError, match="not Unicode"):
        await Scribe.on(store, "e1", thread_id="\udcff").start()
    assert await store.header("e1") is None


@requirement("store:alarms")
@pytest.mark.parametrize("name", ["due_suspensions", "next_deadline"])
async def test_alarms_and_deadlines_come_from_one_index(tmp_path: Path, name: str) -> None:
    store = SqliteStore.open(tmp_path / "planwarden.db")
    with closing(sqlite3.connect(store.path)) as connection:
        parameters = (0.0, 100) if name == "due_suspensions" else ()
        plan = connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", parameters).fetchall()
    await store.close()
    reads = [row[3] for row in plan if row[3].startswith(("SEARCH s ", "SCAN s "))]
    assert len(reads) == 1 and "USING INDEX suspension_wakes" in reads[0]
    # Only what is due is sorted, so that owners take turns.
    assert name == "due_suspensions" or "B-TREE" not in str(plan)


@requirement("store:round-trip")
async def test_only_commits_of_others_are_changes(path: Path) -> None:
    one, two = (SqliteStore.open(path, clock=ManualClock()) for _ in range(2))
    scribe = Scribe.on(one, "e1")
    await scribe.start()
    before = await one.changes(0)
    await scribe.suspend("s1")
    assert await one.changes(before.number) == before
    await Scribe.on(two, "e2").start()
    assert (await one.changes(before.number)).number != before.number
    await two.close()
    await one.close()


@requirement("store:starts")
async def test_an_unfinished_plan_is_not_searched_among_all_executions_of_its_principal(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "planwarden.db")
    with closing(sqlite3.connect(store.path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {SQL['unfinished_plan']}", ("digest", "ann")).fetchall()
    await store.close()
    assert "USING INDEX unfinished_plans (plan_digest=?)" in plan[0][3] and "B-TREE" not in str(plan)


@requirement("store:audit")
async def test_what_the_audit_says_of_an_execution_comes_from_an_index_of_beginnings_of_ids(store: SqliteStore) -> None:
    ids = ("e", "12345678", "123456789", "12345678a")
    await store.audit([AuditEntry(kind="refused", facts={"of": name}, execution_id=name) for name in (*ids, *ids)])
    for name in ids:
        rows = await store.audit_rows(execution_id=name)
        assert [row.entry.facts["of"] for row in rows] == [name, name] and rows[0].sequence < rows[1].sequence
    with closing(sqlite3.connect(store.path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {SQL['audit_rows_of']}", ("e1", 0, 100)).fetchall()
    assert "USING INDEX audit_of_executions (<expr>=? AND rowid>?)" in plan[0][3] and "B-TREE" not in str(plan)


@requirement("store:tasks")
async def test_what_is_noted_of_a_task_comes_from_an_index_that_holds_nothing_else(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "planwarden.db")
    with closing(sqlite3.connect(store.path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {SQL['task_rows']}", ("e1", 0, 100)).fetchall()
        index = "SELECT sql FROM sqlite_schema WHERE name = 'audit_of_tasks'"
        [where] = connection.execute(index).fetchone()
    await store.close()
    assert "USING INDEX audit_of_tasks (execution_id=? AND rowid>?)" in plan[0][3] and "B-TREE" not in str(plan)
    assert all(f"'{kind}'" in where for kind in TASK_KINDS) and where.count("'") == 2 * len(TASK_KINDS)


@pytest.mark.parametrize("owner", ["\0", "", "../planted", "a/b", "x" * 300], ids=repr)
def test_an_owner_edited_in_the_database_is_dead_and_touches_no_other_file(tmp_path: Path, owner: str) -> None:
    planted = tmp_path / "planted.alive"
    planted.touch()
    (tmp_path / "owners").mkdir()
    assert LivenessFile(tmp_path / "owners").is_dead(owner)
    assert planted.exists()
