"""Opening a store: the URLs that name one, migrations, upgrades, files that are refused, and reading a file alone."""

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import psycopg
import pytest

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.server.cli.checks.store import replay_logs
from planwarden.storage.location import StoreLocation, read_location
from planwarden.storage.locks import WriteLock
from planwarden.storage.opening import open_at_once, open_store
from planwarden.storage.postgres import connection as postgres
from planwarden.storage.sql.rows import checksum_of, encode_events
from planwarden.storage.sqlite import database
from tests.kit import ManualClock, SqliteStore, ev, requirement
from tests.storage.suite import BACK_ENDS, BackEnd, Postgres, Scribe, Sqlite, decided, guard
from tests.storage.test_sqlite import contents, edit, written
from tests.support.full_store import fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "planwarden.db"


@pytest.fixture
async def filled(path: Path) -> Path:
    store = SqliteStore.open(path)
    await fill(store)
    await store.close()
    return path


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


@pytest.mark.parametrize("switches", range(4))
@pytest.mark.parametrize("moment", ["opening", "closing"])
@pytest.mark.parametrize("by", ["anyio", "asyncio"])
async def test_a_store_whose_opening_or_closing_is_cancelled_leaves_no_file_open(
    path: Path, by: str, moment: str, switches: int
) -> None:
    scope, is_open = anyio.CancelScope(), anyio.Event()

    async def use() -> None:
        with scope:
            async with open_store(StoreLocation(path)) as store:
                await store.claim_many("me", 1)
                is_open.set()

    using = asyncio.create_task(use())
    if moment == "closing":
        await is_open.wait()
    for _ in range(switches):
        await anyio.lowlevel.checkpoint()
    scope.cancel() if by == "anyio" else using.cancel()
    await asyncio.wait([using])
    assert not list_open_files(path.parent)


def list_open_files(folder: Path) -> list[Path]:
    """Return the files below the folder that this process has open."""
    links = [link.resolve() for link in Path("/proc/self/fd").iterdir()]
    return [path for path in links if path.is_relative_to(folder)]


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


async def write_logs(back_end: BackEnd) -> None:
    """Three executions that end well, two that wait, and one of each kind with a step that nothing proves."""
    store = back_end.connect()
    for number in range(3):
        await Scribe.on(store, f"done {number}").finish()
    for number in range(2):
        await Scribe.on(store, f"waits {number}").suspend(f"s{number}")
    for name, is_over in (("wrong", False), ("wrong and over", True)):
        scribe = Scribe.on(store, name)
        await scribe.start()
        last = (ev.ExecutionCompleted(),) if is_over else ()
        await scribe.write(ev.StepCompleted(step_id="a", validation="passed"), *last)


@requirement("replay:store")
async def test_what_can_go_on_is_replayed_and_all_of_it_if_asked_for(back_end: BackEnd) -> None:
    await write_logs(back_end)
    store = back_end.connect()
    report = await replay_logs(store, has_finished=False)
    names = [header.execution_id for header, _ in report.faults]
    assert (report.executions, report.fault_count, names) == (3, 1, ["wrong"])
    everything = await replay_logs(store, has_finished=True)
    assert everything.executions == 7 and everything.events > report.events
    found = {log.execution_id: (log.thread_id, fault.sequence, fault.event) for log, fault in everything.faults}
    assert found == {name: (f"thread of {name}", 4, "StepCompleted") for name in ("wrong", "wrong and over")}


@requirement("replay:store")
@pytest.mark.parametrize("is_number", [False, True])
async def test_an_event_that_cannot_be_read_is_named_by_its_number(tmp_path: Path, is_number: bool) -> None:
    back_end = Sqlite(tmp_path)
    store = back_end.connect()
    scribe = Scribe.on(store, "e")
    await scribe.suspend("s")
    [first] = [entry.sequence for entry in scribe.written if isinstance(entry.event, ev.Suspended)]
    at = scribe.written[-1].at
    body = encode_events([entry.event for entry in scribe.written[first - 1 :]])
    changed = "7" if is_number else body.removesuffix("]") + ',["ZZ"]]'
    checksum = checksum_of("e", first, at, changed)
    edit(
        tmp_path / "planwarden.db", "UPDATE events SET body = ?, checksum = ? WHERE first = ?", changed, checksum, first
    )
    report = await replay_logs(back_end.connect(), has_finished=False)
    await back_end.close()
    [(_, fault)] = report.faults
    assert fault.sequence == first + (0 if is_number else 2) and "newer planwarden" in fault.reason


@requirement("replay:upgrade")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_an_upgrade_that_could_not_continue_an_execution_is_rolled_back_and_names_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_end = BACK_ENDS[kind](tmp_path)
    assert isinstance(back_end, Sqlite | Postgres)
    await write_logs(back_end)
    await back_end.opened.pop().close()
    added = "ALTER TABLE executions ADD COLUMN region text;"
    newer, newer_file = [*postgres.read_migrations(), added], [*database.migrations(), added]
    with monkeypatch.context() as changed:
        changed.setattr(postgres, "read_migrations", lambda: newer)
        changed.setattr(database, "migrations", lambda: newer_file)
        with pytest.raises(StoreError, match=r"cannot continue|was not upgraded and nothing was written") as caught:
            back_end.connect()
    assert "execution 'wrong' (thread 'thread of wrong') from event 4 (StepCompleted)" in caught.value.message
    assert "wrong and over" not in caught.value.message
    if isinstance(back_end, Postgres):
        columns = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'region'"
        with closing(psycopg.connect(back_end.url)) as connection:
            assert connection.execute(columns).fetchone() == (0,)
    # It is as it was before, so it opens.
    assert await back_end.connect().header("wrong") is not None
    await back_end.close()


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
    with pytest.raises(StoreError, match=message):
        open_at_once(StoreLocation(path=path))
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


async def test_reading_alone_waits_for_nobody_sees_what_was_committed_and_disturbs_no_process(filled: Path) -> None:
    store = SqliteStore.open(filled)
    scribe = Scribe.on(store, "new", thread_id="another")
    await scribe.suspend("asked")
    with closing(WriteLock(filled.with_name(filled.name + ".lock"))) as lock, lock.held():
        lookups = open_at_once(StoreLocation(path=filled))
        assert lookups is not None and await lookups.read("new") == await store.read("new")
        assert await lookups.find_suspension("asked") is not None
        await lookups.close()
    with pytest.raises(StoreError):
        await lookups.header("new")
    await scribe.write(decided("asked"), guards=[guard("asked")])
    assert await store.read("new") == tuple(scribe.written)
    await store.close()


async def test_a_file_of_an_older_version_is_brought_up_to_date_before_it_is_read(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = [*database.migrations(), "CREATE TABLE news (text TEXT) STRICT;"]
    monkeypatch.setattr(database, "migrations", lambda: newer)
    assert open_at_once(StoreLocation(path=filled)) is None
    await SqliteStore.open(filled).close()
    lookups = open_at_once(StoreLocation(path=filled))
    assert lookups is not None and await lookups.header("finished z") is not None
    await lookups.close()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_names_a_database_or_a_file_and_is_shown_without_its_password(tmp_path: Path, scheme: str) -> None:
    url, control = f"{scheme}://ann:secret@db.example:5433/plans?password=secret", "postgresql://ann@direct/plans"
    found = read_location(url, control)
    assert (found.path, found.url, found.control_url, found.is_made) == (None, url, control, True)
    assert str(found) == f"{scheme}://db.example:5433/plans" and "secret" not in repr(found)
    assert found.has_password and not read_location(control).has_password
    for hosts in ("one:5432,two:5433", "one,[::1]:5433", "[fe80::1%25eth0],two"):
        assert str(read_location(f"{scheme}://ann@{hosts}/plans")) == f"{scheme}://{hosts}/plans"
    for url in (f"{scheme}:///plans?host=/var/run/postgresql", f"{scheme}://ann@one:5432,two/plans", f"{scheme}://one"):
        assert read_location(url).safe_url == url
    found = read_location(f"sqlite://{tmp_path}/plans.db")
    assert (found.path, found.is_made) == (tmp_path / "plans.db", False)
    assert read_location("sqlite:////var/lib/plans.db").path == Path("//var/lib/plans.db")
    assert read_location("sqlite:///~/plans.db").path == Path.home() / "plans.db"


@pytest.mark.parametrize(
    "url",
    [
        *(
            "mysql://ann:secret@host/x",
            "secret",
            "sqlite://relative/secret.db",
            "sqlite://",
            "sqlite:///a\0secret",
            "postgresql://host:secret/x",
        ),
        *("postgresql://host:99999/secret", "postgresql://one:1,two:65536/secret"),
    ],
)
def test_any_other_text_is_refused_with_the_known_forms_and_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidArguments, match="sqlite:///FILE") as refused:
        read_location(url)
    assert "secret" not in str(refused.value)
    with pytest.raises(InvalidArguments, match="control URL"):
        read_location("postgresql://host/x", "sqlite:///x")


@pytest.mark.parametrize("password", ["se@cret", "12?34cret", "12#34cret", "1/cret", "1/2?cret", "a?cret", "[cret"])
def test_a_password_that_is_not_percent_encoded_is_refused_without_a_part_of_it(password: str) -> None:
    url = f"postgresql://ann:{password}@db.example/plans"
    for urls in ((url,), ("postgresql://ann@db.example/plans", url)):
        with pytest.raises(InvalidArguments, match=r"percent-encoded, for example @ as %40") as refused:
            read_location(*urls)
        assert "cret" not in refused.value.message
