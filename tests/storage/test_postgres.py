"""What only PostgreSQL can do to a store: connections that break, servers that start again, many machines."""

import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg
import pytest
from msgspec.structs import replace
from psycopg.conninfo import make_conninfo

from planwarden.agent.common.errors import ExecutionConflict, InvalidArguments, StoreError
from planwarden.agent.core import audit
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry, hash_row
from planwarden.agent.ports.grant import Grant
from planwarden.agent.ports.store import StartRequest
from planwarden.storage.postgres.append import encode_append
from planwarden.storage.postgres.connection import name_server
from planwarden.storage.postgres.control import lock_key
from planwarden.storage.postgres.hints import EVERYTHING
from planwarden.storage.postgres.store import PostgresStore
from planwarden.storage.postgres.transaction import PostgresTransaction
from tests.storage.suite import PLAN, Scribe, decided, guard
from tests.support.postgres import Server, shared_server
from tests.support.proxy import LosingProxy

pytestmark = pytest.mark.anyio

GRANT = Grant(
    grant_id="g1",
    tool_name="pay",
    definition_digest="digest",
    arguments={},
    uses=3,
    expires_at=4e9,
    owner=None,
    created_by="ann",
    assurance="human",
    channel="cli",
    created_at=1.8e9,
)


@pytest.fixture
async def store(url: str) -> AsyncGenerator[PostgresStore]:
    opened = PostgresStore.open(url)
    yield opened
    await opened.close()


async def test_an_append_whose_answer_was_lost_is_stored_once_and_acknowledged(url: str, tmp_path: Path) -> None:
    server = shared_server()
    turns = iter(range(1_000_000))
    proxy = LosingProxy(
        server.folder / ".s.PGSQL.5432",
        tmp_path,
        lambda data: b"append_all" in data and next(turns) % 3 == 1,
    )
    store = PostgresStore.open(make_conninfo(url, host=str(tmp_path)))
    scribes = [Scribe.on(store, f"e{number}") for number in range(8)]
    for scribe in scribes:
        await scribe.suspend(f"s of {scribe.execution.execution_id}")
        await scribe.write(decided(f"s of {scribe.execution.execution_id}"))
    for scribe in scribes:
        assert await store.read(scribe.execution.execution_id) == tuple(scribe.written)
    rows = await store.audit_rows(limit=1000)
    assert [row.entry.kind for row in rows].count("decided") == len(scribes)
    assert proxy.lost > 3
    await store.close()
    proxy.close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_of_the_database_loses_nothing_that_was_acknowledged(mode: str) -> None:
    server = Server(fsync="on")
    store = PostgresStore.open(server.make_database())
    scribes = [Scribe.on(store, f"e{number}") for number in range(6)]

    async def toil(scribe: Scribe) -> None:
        await scribe.start()
        for number in range(12):
            name = f"{scribe.execution.execution_id} {number}"
            await scribe.suspend(name)
            await scribe.write(decided(name), guards=[guard(name)])

    async with anyio.create_task_group() as tasks:
        for scribe in scribes:
            tasks.start_soon(toil, scribe)
        await anyio.to_thread.run_sync(server.stop, mode)
        await anyio.to_thread.run_sync(server.start)
    for scribe in scribes:
        assert await store.read(scribe.execution.execution_id) == tuple(scribe.written)
    await store.close()
    server.end()


async def test_rows_of_the_audit_that_many_processes_write_and_seal_make_one_chain(url: str) -> None:
    stores = [PostgresStore.open(url) for _ in range(3)]

    async def write(number: int) -> None:
        for part in range(10):
            await stores[number % 3].audit([AuditEntry(kind="refused", facts={"number": number, "part": part})])
            await stores[part % 3].audit_end()

    async with anyio.create_task_group() as tasks:
        for number in range(9):
            tasks.start_soon(write, number)
    rows = await stores[0].audit_rows(limit=1000)
    assert [row.sequence for row in rows] == list(range(1, 91))
    before = audit.GENESIS
    for row in rows:
        before = hash_row(before, row.sequence, row.at, row.entry)
        assert row.hash == before
    assert len({(row.entry.facts["number"], row.entry.facts["part"]) for row in rows}) == 90
    assert await stores[1].audit_end() == 90
    for store in stores:
        await store.close()


def test_a_connection_that_breaks_while_a_store_opens_is_said_as_any_other(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(connection: psycopg.Connection[Any], url: str) -> None:
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))

    monkeypatch.setattr("planwarden.storage.postgres.store.migrate", cut)
    before = threading.active_count()
    with pytest.raises(StoreError, match="cannot be reached or ended the connection"):
        PostgresStore.open(url)
    assert threading.active_count() == before


async def test_an_owner_whose_lock_is_free_is_taken_for_dead_only_when_it_stays_free(url: str) -> None:
    living, looking = PostgresStore.open(url), PostgresStore.open(url, gone_s=3600.0)
    hasty = PostgresStore.open(url, gone_s=0.0)
    scribe = Scribe.on(living, "e1", owner="alive")
    await scribe.start()
    with psycopg.connect(url, autocommit=True) as connection:
        key = lock_key("alive") & 0xFFFFFFFFFFFFFFFF
        found = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks "
            "WHERE locktype = 'advisory' AND classid = %s AND objid = %s",
            (key >> 32, key & 0xFFFFFFFF),
        ).fetchall()
    assert found == [(True,)]
    assert await looking.orphans(10) == ()
    while True:
        # Its process lives, and holds the lock again after a moment.
        with psycopg.connect(url, autocommit=True) as connection:
            if connection.execute("SELECT NOT pg_try_advisory_lock(%s)", (lock_key("alive"),)).fetchall() == [(True,)]:
                break
    await living.close()
    # The server notices a moment later that the connection ended.
    with anyio.fail_after(60):
        while await hasty.orphans(10) != ("e1",):
            await anyio.lowlevel.checkpoint()
    [taken] = await hasty.claim_many("p2", 10)
    assert taken.left_s is not None and taken.left_s > 0 and not taken.is_from_silent
    for store in (looking, hasty):
        await store.close()


async def test_two_stores_of_one_owner_do_not_wait_for_its_lock(url: str) -> None:
    first, second, looking = (PostgresStore.open(url, gone_s=0.0) for _ in range(3))
    await Scribe.on(first, "e1", owner="same").start()
    await Scribe.on(second, "e2", owner="same").start()
    await first.close()
    await second.close()
    assert set(await looking.orphans(10)) == {"e1", "e2"}
    await looking.close()


async def test_nobody_sees_a_lease_before_its_owner_is_known(store: PostgresStore, url: str) -> None:
    scribe = Scribe.on(store, "e1")
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE owners")
        async with anyio.create_task_group() as tasks:
            # Both announce the owner, and neither may go on because the other one is about to.
            tasks.start_soon(store.claim_many, scribe.owner, 1)
            tasks.start_soon(scribe.start)
            for _ in range(200):
                await anyio.lowlevel.checkpoint()
                assert connection.execute("SELECT count(*) FROM executions").fetchone() == (0,)
            connection.commit()
        known = connection.execute("SELECT x.owner = o.owner FROM executions x JOIN owners o USING (owner)").fetchall()
    assert known == [(True,)]


async def test_who_commits_elsewhere_is_said_by_name_and_everything_when_hints_were_lost(url: str) -> None:
    one, two = PostgresStore.open(url), PostgresStore.open(url)
    seen = await two.changes(0)
    assert seen.executions is None
    await Scribe.on(one, "e1").start()
    found = await two.changes(seen.number)
    while found.number == seen.number:
        await anyio.sleep(0.01)
        found = await two.changes(seen.number)
    assert found.executions is None or found.executions == {"e1"}
    assert (await two.changes(found.number + 1_000_000)).executions is not None
    for store in (one, two):
        await store.close()


async def test_a_grant_of_one_process_is_news_for_the_others(store: PostgresStore, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("LISTEN planwarden")
        await store.add_grant(GRANT, AuditEntry(kind="grant_made", facts={}))
        await store.revoke_grant(GRANT.grant_id, AuditEntry(kind="grant_revoked", facts={}))
        heard = [hint.payload for hint in other.notifies(timeout=60, stop_after=2)]
    assert [hint.partition("\n")[2] for hint in heard] == [EVERYTHING, EVERYTHING]


async def test_an_operation_that_is_repeated_forgets_what_its_first_attempt_refused(store: PostgresStore) -> None:
    attempts = 0

    def work(transaction: PostgresTransaction) -> int:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise InvalidArguments("not yet")
        return attempts

    def fail_once(transaction: PostgresTransaction) -> None:
        if attempts == 1:
            raise psycopg.errors.SerializationFailure("again")

    database = store._database  # pyright: ignore[reportPrivateUsage]
    found: list[int] = []

    async def run() -> None:
        found.append(await database.write(work))

    is_busy, may_go_on = threading.Event(), threading.Event()

    def occupy(transaction: PostgresTransaction) -> bool:
        is_busy.set()
        return may_go_on.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.write, occupy)
        await anyio.to_thread.run_sync(is_busy.wait)
        tasks.start_soon(run)
        tasks.start_soon(database.write, fail_once)
        # Both have asked when the loop has had its turn; then they are one group.
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        may_go_on.set()
    assert found == [2]


async def test_an_id_with_nul_is_refused_and_spoils_no_other_append_of_its_group(store: PostgresStore) -> None:
    good, bad = Scribe.on(store, "good"), Scribe.on(store, "bad\0")

    async def refuse() -> None:
        with pytest.raises(StoreError, match="NUL"):
            await bad.start()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(refuse)
        tasks.start_soon(good.start)
    assert await store.read("good") == tuple(good.written)


async def test_a_start_looks_at_no_other_execution_of_its_principal(store: PostgresStore, url: str) -> None:
    for number in range(20):
        await Scribe.on(store, f"e{number}").start()
    scribe = Scribe.on(store, "new")
    created = scribe.append(ev.ExecutionCreated(goal="go"), ev.PlanAccepted(plan=PLAN))
    start = StartRequest(plan="digest of the plan", is_only=True)
    text = encode_append(replace(created, start=start))
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT outcome FROM append_all(%s, NULL, NULL, 15)", (f"[{text}]",)).fetchone()
        read = connection.execute("SELECT pg_stat_get_xact_tuples_returned('executions_of_principal'::regclass)")
        assert (row, read.fetchone()) == (("stored",), (0,))


async def test_an_address_without_a_server_is_said_without_the_password() -> None:
    url = "postgresql://ann:secret@127.0.0.1:1/plans"
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1/plans") as refused:
        PostgresStore.open(url)
    assert "secret" not in refused.value.message
    assert "ann" not in name_server(url)


async def test_a_foreign_and_a_newer_database_are_left_as_they_are(url: str) -> None:
    foreign = shared_server().make_database()
    with psycopg.connect(foreign, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS schema_versions")
        connection.execute("CREATE TABLE IF NOT EXISTS executions (x int)")
    with pytest.raises(StoreError, match="another application"):
        PostgresStore.open(foreign)
    await PostgresStore.open(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO schema_versions VALUES (1000)")
    with pytest.raises(StoreError, match="newer planwarden"):
        PostgresStore.open(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM schema_versions WHERE version = 1000")


async def test_appends_of_two_processes_to_the_same_executions_do_not_wait_for_each_other_forever(url: str) -> None:
    stores = [PostgresStore.open(url) for _ in range(2)]
    scribes = [Scribe.on(stores[0], f"e{number}") for number in range(20)]
    for scribe in scribes:
        await scribe.start()
    won = 0

    async def ask(store: PostgresStore, scribe: Scribe, name: str) -> None:
        nonlocal won
        other = Scribe(store, scribe.execution, lease=scribe.lease, owner=scribe.owner)
        try:
            await other.suspend(name)
        except ExecutionConflict:
            return
        won += 1

    async with anyio.create_task_group() as tasks:
        for number, scribe in enumerate([*scribes, *reversed(scribes)]):
            tasks.start_soon(ask, stores[number // len(scribes)], scribe, f"s{number}")
    assert won == len(scribes)
    for store in stores:
        await store.close()


def test_every_statement_of_one_database_stands_in_the_other_or_belongs_to_it_alone() -> None:
    from planwarden.storage.postgres.statements import SQL as POSTGRES
    from planwarden.storage.sqlite.statements import SQL as SQLITE

    used = {name for path in Path("storage/sql").glob("*.py") for name in SQLITE if f'"{name}"' in path.read_text()}
    # What `append_one` does by itself.
    assert used - POSTGRES.keys() == {
        *("add_notification", "use_grant", "uses_left"),
        *("find_once_key", "free_once_keys", "free_shares", "shares_room_at", "spent_shares", "take_share"),
    }
