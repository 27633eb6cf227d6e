"""The SQLite file itself: modes, migrations, files that are refused, backups, dead owners."""

import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import fold
from planwarden.agent.core.state import new_execution
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.store import SqliteStore
from tests.harness.process import WORKER
from tests.kit import ManualClock, MemoryStore, requirement
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


def test_every_commit_waits_until_the_disk_has_it(path: Path) -> None:
    database.prepare(path)
    with closing(database.connect(path)) as connection:
        settings = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "fullfsync")}
    assert settings == {"synchronous": 2, "fullfsync": 1}


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


@requirement("sqlite:migrate-rows", "store:reopen")
async def test_a_file_of_an_earlier_schema_is_brought_forward_with_its_rows_or_left_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = await written(path)
    real = database.migrations()
    added = "ALTER TABLE executions ADD COLUMN region TEXT;"
    broken, whole = f"{added}\nDROP TABLE no_such_table;", f"{added}\nDROP INDEX finished_executions;"
    monkeypatch.setattr(database, "migrations", lambda: [*real, broken])
    with pytest.raises(StoreError):
        SqliteStore.open(path, clock=ManualClock())
    for migrations in (real, [*real, whole]):
        monkeypatch.setattr(database, "migrations", partial(list[str], migrations))
        store = SqliteStore.open(path, clock=ManualClock())
        assert (await store.check())["schema"] == len(migrations)
        for execution_id, log in logs.items():
            assert await store.read(execution_id) == log
        assert [row.suspension_id for row in (await store.suspensions()).rows] == [f"s{n}" for n in range(0, 12, 2)]
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


def make_other(path: Path, *statements: str) -> None:
    path.unlink()
    for statement in statements:
        edit(path, statement)


BOOKMARKS, OTHER, NONE = "CREATE TABLE bookmarks (url TEXT)", "another application", "not a planwarden database"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "newer": (lambda path: edit(path, f"PRAGMA user_version = {database.latest_version() + 1}"), "newer planwarden"),
    "marked": (lambda path: edit(path, "PRAGMA application_id = 42"), OTHER),
    "versioned": (lambda path: make_other(path, BOOKMARKS, "PRAGMA user_version = 1"), OTHER),
    "bookmarks": (lambda path: make_other(path, BOOKMARKS), OTHER),
    "text": (lambda path: path.write_text("Dear diary, " * 100, encoding="utf-8"), NONE),
    "cut header": (lambda path: path.write_bytes(path.read_bytes()[:60]), NONE),
    "garbage header": (lambda path: path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:]), NONE),
}


@requirement("sqlite:refused-untouched", "sqlite:damage")
@pytest.mark.parametrize("kind", REFUSED)
async def test_a_file_that_is_not_ours_to_use_is_refused_and_no_byte_changes(path: Path, kind: str) -> None:
    spoil, message = REFUSED[kind]
    await written(path, 1)
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    shutil.rmtree(path.parent / "owners")
    spoil(path)
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


@requirement("sqlite:backup")
async def test_a_store_in_memory_is_checked_and_backed_up_as_a_file_is(tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())
    await Scribe.on(store, "e1").finish()
    await store.backup(tmp_path / "copy.db")
    copy = SqliteStore.open(tmp_path / "copy.db", clock=ManualClock())
    assert await copy.read("e1") == await store.read("e1") and await copy.check() == await store.check()
    await copy.close()
