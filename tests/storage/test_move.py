"""Moving a store: everything arrives as it was, one place is used at a time, and what cannot be moved stays."""

import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from planwarden.agent.common.artifact import make_artifact
from planwarden.agent.common.errors import InvalidArguments, StoreError, StoreReplaced
from planwarden.agent.core.audit import AuditEntry
from planwarden.server.api.audit import AuditReader
from planwarden.server.api.verification import AuditVerdict
from planwarden.storage.location import StoreLocation, read_location
from planwarden.storage.moved_marker import MoveMark
from planwarden.storage.moving.move import move
from planwarden.storage.moving.tables import LEFT, MERGED, OWNED, TABLES
from planwarden.storage.opening import open_store
from planwarden.storage.postgres.connection import connect
from planwarden.storage.postgres.moved_marker import write_mark
from planwarden.storage.postgres.store import PostgresStore
from tests.requirements import requirement
from tests.storage.suite import Scribe
from tests.support.full_store import dump, fill, intend, make_url
from tests.support.postgres import shared_server
from tests.support.slices import first_only

pytestmark = pytest.mark.anyio

MakePlace = Callable[[str], StoreLocation]
KINDS = ("sqlite", "postgres")
DIRECTIONS = first_only(*(("sqlite", "postgres"), ("postgres", "sqlite")), *((kind, kind) for kind in KINDS), keep=2)


@pytest.fixture
def place(tmp_path: Path) -> Generator[MakePlace]:
    """Makes the location of a new store of a kind."""
    made: list[StoreLocation] = []

    def make(kind: str) -> StoreLocation:
        url = make_url() if kind == "postgres" else f"sqlite://{tmp_path / f'{len(made)}.db'}"
        made.append(read_location(url))
        return made[-1]

    yield make
    for location in made:
        if location.path is None:
            # A marked one would not serve another test.
            shared_server().drop_database(location.url)


async def make_full(location: StoreLocation) -> None:
    async with open_store(location) as store:
        await fill(store)


async def make_one(location: StoreLocation, execution_id: str = "e1") -> None:
    """One execution, which a dead process left running."""
    async with open_store(location) as store:
        await Scribe.on(store, execution_id).start()


async def verify(location: StoreLocation, head: str | None = None) -> AuditVerdict:
    async with open_store(location) as store:
        return await AuditReader(store).verify(head)


@requirement("move:whole")
@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
async def test_everything_that_a_store_can_hold_arrives_and_comes_back(
    place: MakePlace, source: str, target: str
) -> None:
    places = [place(source), place(target), place(source)]
    await make_full(places[0])
    before = await verify(places[0])
    was = dump(places[0])
    assert [name for name, rows in was.items() if not rows] == []
    there, back = (move(*pair) for pair in ((places[0], places[1]), (places[1], places[2])))
    assert there.rows == back.rows == {name: len(rows) for name, rows in was.items()}
    assert dump(places[1]) == was == dump(places[2])
    assert there.audit_head == back.audit_head == before.head
    assert await verify(places[2], before.head) == before


@requirement("move:whole")
@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
async def test_the_order_of_rows_is_kept_new_ones_come_after_and_what_ran_is_taken_over_at_once(
    place: MakePlace, source: str, target: str
) -> None:
    old, new = place(source), place(target)
    await make_full(old)

    async def read(location: StoreLocation) -> list[object]:
        async with open_store(location) as store:
            first = await store.suspensions(limit=1)
            return [
                [replace(header, owner=None, leased_until=0.0) for header in await store.executions(None, 100)],
                await store.thread("thread"),
                first,
                await store.suspensions(limit=1, cursor=first.next_cursor),
                await store.waiting(),
                await store.decided(),
                await store.grants(only_open=False),
                await store.tokens.all(),
                await store.signing_keys.keys(),
                await store.audit_rows(limit=100),
                await store.find_start("ann", "monday"),
            ]

    was = await read(old)
    move(old, new)
    assert await read(new) == was
    async with open_store(new) as store:
        assert "running" in await store.orphans(10)
        lease = await store.claim("running", "p2")
        assert lease is not None and lease.fence == 2 and not lease.is_from_silent
        await store.release(lease)
        await fill(store, " again")
        assert await store.audit_end() == 2 * len(dump(old)["audit"])
    twice = {name: 2 * len(rows) for name, rows in dump(old).items()}
    assert {name: len(rows) for name, rows in dump(new).items()} == twice


@requirement("move:whole")
async def test_what_waits_to_be_sealed_is_sealed_before_it_moves(place: MakePlace) -> None:
    old, new = place("postgres"), place("sqlite")
    await make_full(old)
    with psycopg.connect(old.url) as connection:
        connection.execute(
            "INSERT INTO audit_unsealed (at, kind, execution_id, suspension_id, facts, policy) "
            "VALUES (1.0, 'late', NULL, NULL, '{}', '')"
        )
    report = move(old, new)
    verdict = await verify(new)
    assert verdict.head == report.audit_head
    async with open_store(new) as store:
        assert [row.entry.kind for row in await store.audit_rows(limit=100)][-1] == "late"


@requirement("move:whole")
@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
async def test_rows_of_the_audit_that_are_missing_at_the_end_are_missed_after_a_move_too(
    place: MakePlace, source: str, target: str
) -> None:
    old, new = place(source), place(target)
    async with open_store(old) as store:
        await store.audit([AuditEntry(kind="refused", facts={"number": number}) for number in range(3)])
        assert await store.audit_end() == 3
    statement = "DELETE FROM audit WHERE sequence = 3"
    if old.path is None:
        with psycopg.connect(old.url) as connection:
            connection.execute(statement.encode())
    else:
        with closing(sqlite3.connect(old.path)) as file, file:
            file.execute(statement)
    move(old, new)
    assert (await verify(new)).problems == ("rows 3 to 3 are missing at the end",)


def test_every_table_and_column_of_both_databases_is_one_that_moves_or_is_known_not_to(place: MakePlace) -> None:
    file, database = place("sqlite"), place("postgres")
    assert file.path is not None
    file.path.touch()
    assert set(move(file, database).rows.values()) == {0}
    found: dict[str, dict[str, set[str]]] = {"sqlite": {}, "postgres": {}}
    with closing(sqlite3.connect(file.path)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            found["sqlite"][name] = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
    columns = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    with psycopg.connect(database.url) as connection:
        for name, column in connection.execute(columns.encode()):
            found["postgres"].setdefault(name, set()).add(column)
    tables = {"sqlite": {"sqlite_sequence", "move_mark"}, "postgres": {"schema_versions"}}
    # Those that a database has for itself.
    own = {"sqlite": {"events.position", "artifacts.number"}, "postgres": {"events.token"}}
    columns_of = {
        kind: {f"{name}.{column}" for name in TABLES for column in there[name]} - own[kind]
        for kind, there in found.items()
    }
    assert columns_of["sqlite"] == columns_of["postgres"] and columns_of["sqlite"] >= {*OWNED}
    for kind in KINDS:
        assert found[kind].keys() - {*TABLES, *LEFT, *MERGED} == tables[kind]


async def test_large_results_pass_one_at_a_time(place: MakePlace) -> None:
    old, new, size = place("sqlite"), place("postgres"), 1024 * 1024
    async with open_store(old) as store:
        for number in range(8):
            scribe = Scribe.on(store, f"e{number}")
            await scribe.start()
            await intend(store, scribe, artifacts=(make_artifact(bytes([number]) * size),))
    tracemalloc.start()
    move(old, new)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * size


@requirement("move:empty-target")
@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
async def test_a_target_that_holds_anything_is_refused_with_what_it_holds_and_both_stay(
    place: MakePlace, source: str, target: str
) -> None:
    old, new = place(source), place(target)
    await make_one(old, "old")
    await make_one(new, "new")
    was = dump(old), dump(new)
    with pytest.raises(
        StoreError, match=r"is not empty \(executions: 1, synopses: 1, transactions of logs: 1\); name a new file"
    ):
        move(old, new)
    assert (dump(old), dump(new)) == was
    for location in (old, new):
        await verify(location)


@requirement("move:marked")
@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
async def test_the_source_says_where_it_went_without_a_password_and_takes_nothing_back(
    place: MakePlace, source: str, target: str
) -> None:
    old, new, other = place(source), place(target), place(source)
    await make_one(old)
    move(old, new)
    for attempt in (lambda: verify(old), lambda: make_one(old, "e2")):
        with pytest.raises(StoreError) as refused:
            await attempt()
        assert f"was moved to {new.safe_url}; set PLANWARDEN_STORE to that" in refused.value.message
        assert "hidden" not in refused.value.message
    for pair in ((old, new), (old, other)):
        with pytest.raises(StoreError, match="was moved to"):
            move(*pair)
    with pytest.raises(StoreError, match=r"still holds what was moved to .*; name a new file or an empty database"):
        move(new, old)
    await make_one(new, "e2")


@requirement("move:marked")
async def test_a_process_that_nobody_saw_writes_nothing_to_a_database_that_was_moved(place: MakePlace) -> None:
    location = place("postgres")
    store = PostgresStore.open(location.url)
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    was = dump(location)
    with connect(location.url) as connection, connection.transaction():
        write_mark(connection, MoveMark("m", True, "sqlite:///new.db"), list(TABLES))
    with pytest.raises(StoreReplaced, match=r"was moved to sqlite:///new\.db, and nothing more is written"):
        await scribe.finish()
    with pytest.raises(StoreReplaced):
        await store.renew("p1", ["e1"])
    with pytest.raises(StoreReplaced):
        await store.tokens.revoke("t1", 1.0)
    await store.close()
    assert dump(location) == was


def start(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@requirement("move:alone")
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_moves_while_a_process_has_the_source_or_the_target_open(place: MakePlace, kind: str) -> None:
    used, old, new = place(kind), place("sqlite"), place("sqlite")
    await make_one(old)
    program = (
        "import anyio\n"
        "from planwarden.storage.location import read_location\n"
        "from planwarden.storage.opening import open_store\n"
        "async def main():\n"
        f"    async with open_store(read_location({(used.url or used.safe_url)!r})):\n"
        "        print('open', flush=True)\n"
        "        input()\n"
        "anyio.run(main)\n"
    )
    process = start(program)
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    for pair in ((used, new), (old, used)):
        with pytest.raises(StoreError, match=r"another process has .* open; end every planwarden process"):
            move(*pair)
    process.communicate("\n")
    assert process.returncode == 0
    move(old, used)


@requirement("move:alone")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_is_not_moved_onto_itself(place: MakePlace, tmp_path: Path, kind: str) -> None:
    location = place(kind)
    await make_one(location)
    with pytest.raises(InvalidArguments, match="already"):
        move(location, location)
    if location.path is None:
        with pytest.raises(StoreError, match="open"):
            move(location, read_location(location.url + "&application_name=other"))
    else:
        (tmp_path / "link.db").symlink_to(location.path)
        with pytest.raises(InvalidArguments, match="already"):
            move(location, StoreLocation(path=tmp_path / "link.db"))
    assert (await verify(location)).is_whole


async def test_an_id_that_postgresql_cannot_hold_is_named_and_the_store_stays(place: MakePlace) -> None:
    old, new = place("sqlite"), place("postgres")
    await make_one(old)
    assert old.path is not None
    with closing(sqlite3.connect(old.path)) as file, file:
        file.execute("UPDATE executions SET thread_id = ?", ("t\0",))
    with pytest.raises(StoreError, match=r"thread_id of 'e1' among the executions has a NUL.*nothing was moved"):
        move(old, new)
    await make_one(new, "usable")
    async with open_store(old) as store:
        assert await store.header("e1") is not None


async def test_a_target_that_does_not_hold_what_was_copied_is_found_out(place: MakePlace) -> None:
    old, new = place("sqlite"), place("postgres")
    with pytest.raises(StoreError, match="nothing to move"):
        move(old, new)
    assert old.path is not None and not old.path.exists()
    await make_full(old)

    await verify(new)
    with psycopg.connect(new.url) as connection:
        connection.execute(
            "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN NEW.checksum = NEW.checksum + 1; RETURN NEW; END $$"
        )
        connection.execute("CREATE TRIGGER spoil BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION spoil()")
    with pytest.raises(StoreError, match=r"read back from .*, the transactions of logs differ"):
        move(old, new)
    with psycopg.connect(new.url) as connection:
        connection.execute("DROP FUNCTION spoil CASCADE")
    assert (await verify(old)).head == move(old, new).audit_head
    assert "running" in str(dump(new)["executions"])


async def test_a_copy_of_a_file_from_before_the_move_is_no_way_around_the_mark_of_the_target(place: MakePlace) -> None:
    old, new = place("sqlite"), place("postgres")
    await make_one(old)
    assert old.path is not None
    backup = old.path.with_name("backup.db")
    shutil.copy(old.path, backup)
    move(old, new)
    with pytest.raises(StoreError, match="executions: 1"):
        move(StoreLocation(path=backup), new)
