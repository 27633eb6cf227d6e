"""What only PostgreSQL does: owners are locks, others hear what changed, and whoever starts is told what is wrong."""

import os
import re
import resource
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from queue import SimpleQueue

import anyio
import anyio.lowlevel
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from planwarden.agent.common.errors import ExecutionConflict, StoreError
from planwarden.agent.core.execution import audit
from planwarden.agent.core.execution.audit import AuditEntry, hash_row
from planwarden.agent.ports.store import Changes
from planwarden.storage.postgres import connection as connections
from planwarden.storage.postgres.connection import name_server
from planwarden.storage.postgres.control_connection import Control, lock_key
from planwarden.storage.postgres.store import PostgresStore
from tests.storage.suite import Scribe
from tests.support.network import Proxy, take_port
from tests.support.postgres import Pooler, Server, shared_pooler, shared_server


@pytest.fixture
async def store(url: str) -> AsyncGenerator[PostgresStore]:
    opened = PostgresStore.open(url)
    yield opened
    await opened.close()


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


async def test_an_owner_whose_lock_is_free_is_taken_for_dead_only_when_it_stays_free(url: str) -> None:
    living, looking = PostgresStore.open(url), PostgresStore.open(url, gone_s=3600.0)
    hasty = PostgresStore.open(url, gone_s=0.0)
    scribe = Scribe.on(living, "e1", owner="alive")
    await scribe.start()
    end_connection_of("alive", url)
    assert await looking.orphans(10) == ()
    await wait_for_lock_of("alive", url)
    await living.close()
    # The server notices a moment later that the connection ended.
    with anyio.fail_after(60):
        while await hasty.orphans(10) != ("e1",):
            await anyio.lowlevel.checkpoint()
    [taken] = await hasty.claim_many("p2", 10)
    assert taken.silent_s is not None and taken.silent_s > 0 and not taken.is_from_silent
    for store in (looking, hasty):
        await store.close()


def end_connection_of(owner: str, url: str) -> None:
    key = lock_key(owner)
    ends = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s"
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute(ends.encode(), (key >> 32 & 0xFFFFFFFF, key & 0xFFFFFFFF)).fetchall() == [(True,)]


async def wait_for_lock_of(owner: str, url: str) -> None:
    is_free = True
    with anyio.fail_after(60):
        while is_free:
            # Its process holds the lock again after a moment.
            await anyio.lowlevel.checkpoint()
            with psycopg.connect(url, autocommit=True) as connection:
                [(is_free,)] = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(owner),)).fetchall()


async def test_a_process_with_thousands_of_clients_takes_its_lock_again_after_its_connection_broke(
    store: PostgresStore, url: str
) -> None:
    await Scribe.on(store, "e1", owner="busy").start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        end_connection_of("busy", url)
        await wait_for_lock_of("busy", url)
        await Scribe.on(store, "e2", owner="later").start()
        await wait_for_lock_of("later", url)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_defect_loses_the_control_connection_for_a_moment_and_is_logged(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard = SimpleQueue[Changes]()

    def hear(changes: Changes) -> None:
        heard.put(changes)
        if changes.executions is not None:
            raise RuntimeError("a defect")

    connection = connections.connect(url)
    connections.migrate(connection, url)
    control = Control(url, hear)
    control.start(connection)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_notify('planwarden', E'somebody\\ne1')")
    assert heard.get(timeout=60).executions == {"e1"}
    assert heard.get(timeout=60).executions is None
    control.stop()
    assert "RuntimeError: a defect" in caplog.text


async def test_a_damaged_row_of_the_audit_is_named_and_stops_no_hints(
    store: PostgresStore, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "INSERT INTO audit_unsealed (at, kind, facts, policy) VALUES (1, 'refused', '[1]', '') RETURNING number"
        ).fetchone()
    assert row is not None
    sentence = f"unsealed row {row[0]} of the audit is damaged: it is not a JSON object; restore a backup"
    for read in (store.check, store.audit_end):
        with pytest.raises(StoreError, match=sentence):
            await read()
    with anyio.fail_after(60):
        while sentence not in caplog.text:
            await anyio.lowlevel.checkpoint()
    other, seen = PostgresStore.open(url), (await store.changes(0)).number
    await Scribe.on(other, "e1").start()
    await store.wait_for_changes(seen, 600)
    await other.close()
    assert not [record for record in caplog.records if record.exc_info]


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


@pytest.fixture(scope="module")
def strict() -> Generator[tuple[Server, str]]:
    """A server that asks for passwords on its port, and the URL of a user of it."""
    port = str(take_port())
    server = Server(
        ["local all all trust", "host all bob all reject", "host all all 127.0.0.1/32 scram-sha-256"],
        listen_addresses="127.0.0.1",
        port=port,
    )
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE ann LOGIN PASSWORD 'secret'")
        connection.execute("CREATE DATABASE plans OWNER ann")
    yield server, f"postgresql://ann:secret@127.0.0.1:{port}/plans"
    server.end()


def refusal(url: str) -> str:
    with pytest.raises(StoreError) as refused:
        PostgresStore.open(url)
    assert name_server(url) in refused.value.message
    assert not re.search("secret|wrong|ann\\b", refused.value.message)
    return refused.value.message


@pytest.mark.parametrize(
    ("part", "by", "sentence"),
    [
        (":secret", ":wrong", "refuses the user of the URL; check its name, password"),
        (":secret", "", "refuses the user of the URL"),
        ("ann:", "ann-who-left:", "refuses the user of the URL"),
        ("ann:", "bob:", "check the URL's sslmode and user"),
        ("/plans", "/nowhere", "/nowhere has no such database; create it"),
        ("/plans", "/postgres", "check its name, password and rights"),
        ("/plans", "/plans?sslmode=require", "does not agree on TLS; check sslmode"),
    ],
)
def test_a_url_that_the_server_refuses_is_told_what_to_check_and_never_its_password(
    strict: tuple[Server, str], part: str, by: str, sentence: str
) -> None:
    assert sentence in refusal(strict[1].replace(part, by))


def test_a_server_that_only_reads_may_be_a_standby_and_of_several_each_is_named(strict: tuple[Server, str]) -> None:
    port = conninfo_to_dict(strict[1])["port"]
    with psycopg.connect(strict[0].url, autocommit=True) as connection:
        connection.execute("ALTER DATABASE plans SET default_transaction_read_only = on")
        assert "is read-only; it may be a standby: use the address of the primary" in refusal(strict[1])
        both = f"postgresql://ann:secret@127.0.0.1:{port},localhost:1/plans"
        assert refusal(both).startswith(f"PostgreSQL at 127.0.0.1:{port},localhost:1/plans ")
        connection.execute("ALTER DATABASE plans RESET default_transaction_read_only")


def test_an_address_without_an_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="the URL of the store is not one of PostgreSQL"):
        PostgresStore.open("postgresql://ann:secret@host:port:x/y?nothing=secret")
    assert "cannot be reached" in refusal("postgresql://ann:secret@127.0.0.1:1/plans")
    assert connections.CONNECT_S < 45
    monkeypatch.setattr(connections, "CONNECT_S", 2)
    silent = Proxy(tmp_path / "elsewhere" / ".s.PGSQL.5432", tmp_path)
    silent.hold()
    assert "does not answer; check that it runs" in refusal(f"postgresql:///plans?host={tmp_path}")
    silent.close()


@pytest.mark.postgres
async def test_a_pooler_is_refused_where_only_it_is_named_and_one_without_a_free_place_says_so(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:\d+/test_\w+ is a pooler .* PLANWARDEN_STORE_CONTROL"):
        PostgresStore.open(shared_pooler().lead_to(url))
    monkeypatch.setattr("planwarden.storage.postgres.reader.RETRY_TIMEOUT_S", 0.3)
    pooler = Pooler(shared_server(), max_client_conn="1")
    first = PostgresStore.open(pooler.lead_to(url), control_url=url)
    await first.header("e1")
    second = PostgresStore.open(pooler.lead_to(url), control_url=url)
    with pytest.raises(StoreError, match="has no free connection"):
        await second.header("e1")
    for store in (first, second):
        await store.close()
    pooler.end()
