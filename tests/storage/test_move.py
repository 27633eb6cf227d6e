"""Moving a store: everything arrives as it was, one place is used at a time, and what cannot be moved stays.

A move that is killed leaves at every moment at most one of the two stores that can be used.
"""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, StoreError, StoreReplaced
from planwarden.server.api.audit import AuditVerdict, verify_audit
from planwarden.storage.keys import KeyStore
from planwarden.storage.location import MoveMark, StoreLocation, read_location
from planwarden.storage.moving.move import move
from planwarden.storage.moving.tables import TABLES
from planwarden.storage.opening import open_store
from planwarden.storage.postgres.connection import connect, write_mark
from planwarden.storage.postgres.store import PostgresStore
from planwarden.storage.tokens import TokenStore
from tests.kit import AuditEntry, first_only, requirement
from tests.storage.suite import Scribe
from tests.support.full_store import dump, fill, make_url
from tests.support.paths import ROOT
from tests.support.postgres import shared_server

MakePlace = Callable[[str], StoreLocation]
KINDS = ("sqlite", "postgres")
PROGRAM = """
import os, signal, sys
from planwarden.storage.keys import KeyStore
from planwarden.storage.location import read_location
from planwarden.storage.moving import move as moving
from planwarden.storage.moving.postgres import PostgresSide
from planwarden.storage.moving.sqlite import SqliteSide

source, target, moment = sys.argv[1:]
pass_on, commits, passed = moving.RowSum.pass_on, 0, 0

def die(reached):
    if reached == moment:
        os.kill(os.getpid(), signal.SIGKILL)

def count(self, rows):
    global passed
    for row in pass_on(self, rows):
        passed += 1
        die(f"row {passed}")
        yield row

def counting(commit):
    def count_commit(self):
        global commits
        commits += 1
        die(f"before commit {commits}")
        commit(self)
        die(f"after commit {commits}")
    return count_commit

moving.RowSum.pass_on = count
for side in (PostgresSide, SqliteSide):
    side.commit = counting(side.commit)
moving.move(read_location(source), read_location(target))
"""
MOMENTS = {
    # The moment, then what can be used after it: the source, the target as an empty store, or neither.
    "row 1": "both",
    "row 30": "both",
    "row 80": "both",
    "before commit 1": "both",
    "after commit 1": "source",
    "before commit 2": "source",
    "after commit 2": "neither",
    "before commit 3": "neither",
}
DIRECTIONS = first_only(*(("sqlite", "postgres"), ("postgres", "sqlite")), *((kind, kind) for kind in KINDS), keep=2)


@pytest.fixture
def place(tmp_path: Path) -> Generator[MakePlace]:
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
        return await verify_audit(store, head)


@requirement("move:whole")
@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
async def test_all_that_a_store_can_hold_arrives_and_comes_back(place: MakePlace, source: str, target: str) -> None:
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
                await TokenStore(store).all(),
                await KeyStore(store).all(),
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
        await TokenStore(store).make("ann")
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
    with pytest.raises(StoreError, match=r"read back from .*, the transactions of logs did not match"):
        move(old, new)
    with psycopg.connect(new.url) as connection:
        connection.execute("DROP FUNCTION spoil CASCADE")
    assert (await verify(old)).head == move(old, new).audit_head
    assert "running" in str(dump(new)["executions"])


async def is_usable(location: StoreLocation) -> bool:
    try:
        await verify(location)
    except StoreError as error:
        assert "was moved to" in error.message or "interrupted; run `planwarden" in error.message
        return False
    return True


def move_and_die(source: StoreLocation, target: StoreLocation, moment: str) -> None:
    urls = [location.url or location.safe_url for location in (source, target)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *urls, moment], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@requirement("move:crash")
@pytest.mark.postgres
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
async def test_a_killed_move_leaves_no_two_stores_and_the_next_run_starts_again(
    place: MakePlace, source: str, target: str, moment: str
) -> None:
    old, new, other = place(source), place(target), place("sqlite")
    for location in (old, other):
        await make_full(location)
    was = dump(old)
    move_and_die(old, new, moment)
    usable = {"both": (True, True), "source": (True, False), "neither": (False, False)}[MOMENTS[moment]]
    assert (await is_usable(old), await is_usable(new)) == usable
    if usable[1]:
        assert not any(dump(new).values())
    else:
        for pair in ((other, new), (new, place("sqlite"))):
            with pytest.raises(StoreError, match="under way or interrupted"):
                move(*pair)
    if usable[0]:
        # What is written between the two runs moves with the second one.
        await make_one(old, "between")
        was = dump(old)
    report = move(old, new)
    assert (await is_usable(old), await is_usable(new), await is_usable(other)) == (False, True, True)
    assert dump(new) == was
    assert report.rows == {name: len(rows) for name, rows in was.items()}
