"""PostgreSQL that restarts, freezes, slows down, fills up, stops writing or is replaced while a store is in use."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from planwarden.agent.common.errors import StoreError
from planwarden.storage.postgres import connection as connections
from planwarden.storage.postgres import reader, writer
from planwarden.storage.postgres.control_connection import lock_key
from planwarden.storage.postgres.store import PostgresStore
from planwarden.storage.tokens import TokenStore
from tests.storage.suite import Scribe, decided, guard
from tests.support.network import Proxy
from tests.support.postgres import Pooler, Server, shared_server


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    with anyio.fail_after(120):
        yield


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    made = Proxy(shared_server().folder / ".s.PGSQL.5432", tmp_path)
    yield made
    made.close()


@pytest.fixture
async def store(url: str, proxy: Proxy) -> AsyncGenerator[PostgresStore]:
    """Reaches its database through the proxy."""
    opened = PostgresStore.open(make_conninfo(url, host=str(proxy.path.parent)), control_url=url)
    yield opened
    proxy.let_go()
    await opened.close()


async def toil(scribe: Scribe, turns: int = 10, in_the_middle: Callable[[], None] = lambda: None) -> None:
    """Start, and ask and answer in turn."""
    await scribe.start()
    for number in range(turns):
        name = f"{scribe.execution.execution_id} {number}"
        await scribe.suspend(name)
        await scribe.write(decided(name), guards=[guard(name)])
        if number == turns // 5:
            in_the_middle()


async def check_logs(store: PostgresStore, scribes: Sequence[Scribe]) -> None:
    """Every log is what its writer was told."""
    for scribe in scribes:
        assert await store.read(scribe.execution.execution_id) == tuple(scribe.written)


async def fails(call: Callable[[], Awaitable[object]], text: str) -> None:
    with pytest.raises(StoreError, match=text):
        await call()


FAREWELL = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"


farewells = pytest.mark.parametrize(
    "farewell", [b"", b"E" + (len(FAREWELL) + 4).to_bytes(4) + FAREWELL], ids=["", "shutdown"]
)


@farewells
async def test_an_append_without_answer_is_stored_and_acknowledged(url: str, tmp_path: Path, farewell: bytes) -> None:
    turns = iter(range(1_000_000))
    socket = shared_server().folder / ".s.PGSQL.5432"
    proxy = Proxy(socket, tmp_path, lambda data: b"COMMIT" in data and next(turns) % 3 == 1, farewell)
    store = PostgresStore.open(make_conninfo(url, host=str(tmp_path)))
    scribes = [Scribe.on(store, f"e{number}") for number in range(8)]
    for scribe in scribes:
        await toil(scribe, 1)
    await check_logs(store, scribes)
    rows = await store.audit_rows(limit=1000)
    assert [row.entry.kind for row in rows].count("decided") == len(scribes)
    assert proxy.lost > 3
    await store.close()
    proxy.close()


@farewells
async def test_a_token_whose_commit_has_no_answer_may_be_stored_and_that_is_said(
    url: str, tmp_path: Path, farewell: bytes
) -> None:
    losses = [False] * 10
    socket = shared_server().folder / ".s.PGSQL.5432"
    proxy = Proxy(socket, tmp_path, lambda data: b"COMMIT" in data and losses.pop(), farewell)
    store = PostgresStore.open(make_conninfo(url, host=str(tmp_path)), control_url=url)
    tokens = TokenStore(store)
    await tokens.make("ann")
    losses += [True]
    await fails(lambda: tokens.make("bob"), "; whether it was stored is not known yet$")
    assert [row.principal for row in await tokens.all()] == ["ann", "bob"] and proxy.lost == 1
    await store.close()
    proxy.close()


@farewells
async def test_a_read_whose_commit_has_no_answer_is_made_again(url: str, tmp_path: Path, farewell: bytes) -> None:
    losses = [False] * 10
    socket = shared_server().folder / ".s.PGSQL.5432"
    proxy = Proxy(socket, tmp_path, lambda data: data[:1] == b"Q" and b"COMMIT" in data and losses.pop(), farewell)
    store = PostgresStore.open(make_conninfo(url, host=str(tmp_path)))
    await toil(Scribe.on(store, "e1"), 1)
    losses += [True]
    assert await store.audit_rows(limit=1000) and proxy.lost == 1
    await store.close()
    proxy.close()


@pytest.mark.parametrize(
    ("dies", "mode"),
    [
        ("server", "immediate"),
        pytest.param("server", "fast", marks=pytest.mark.exhaustive),
        pytest.param("server behind a pooler", "immediate", marks=pytest.mark.postgres),
        pytest.param("pooler", "", marks=pytest.mark.postgres),
    ],
)
async def test_a_database_or_pooler_that_starts_again_loses_nothing_that_was_acknowledged(dies: str, mode: str) -> None:
    server = Server(fsync="on")
    url = server.make_database()
    pooler = Pooler(server) if "pooler" in dies else None
    store = PostgresStore.open(url if pooler is None else pooler.lead_to(url), control_url=url)
    scribes = [Scribe.on(store, f"e{number}") for number in range(6)]
    async with anyio.create_task_group() as tasks:
        for scribe in scribes:
            tasks.start_soon(toil, scribe)
        if pooler is not None and dies == "pooler":
            await anyio.to_thread.run_sync(pooler.stop)
            await anyio.to_thread.run_sync(pooler.start)
        else:
            await anyio.to_thread.run_sync(server.stop, mode)
            await anyio.to_thread.run_sync(server.start)
    await check_logs(store, scribes)
    assert {len(scribe.written) for scribe in scribes} == {3 + 10 * 3}
    await store.close()
    if pooler is not None:
        pooler.end()
    server.end()


@pytest.mark.postgres
async def test_a_server_that_froze_is_said_to_whoever_waits_and_stores_what_is_asked_later(
    store: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    await store.header("e1")
    for module, name in ((connections, "SILENT_S"), (writer, "RETRY_TIMEOUT_S"), (reader, "RETRY_TIMEOUT_S")):
        monkeypatch.setattr(module, name, 0.3)
    monkeypatch.setattr(connections, "CONNECT_S", 2)
    proxy.hold()
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(fails, Scribe.on(store, f"lost {number}").start, "does not answer|cannot be reached")
            tasks.start_soon(fails, lambda: store.header("e1"), "does not answer|cannot be reached")
    proxy.let_go()
    await scribe.suspend("s")
    await check_logs(store, [scribe])


@pytest.mark.postgres
async def test_a_full_disk_is_said_nothing_acknowledged_is_lost_and_space_lets_it_go_on() -> None:
    server = Server(mounts_small_disk=True)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{server.small_disk}'".encode())
        connection.execute("CREATE DATABASE plans TABLESPACE small")
    url = make_conninfo(server.url, dbname="plans")
    store = PostgresStore.open(url)
    scribes = [Scribe.on(store, "e0")]
    await scribes[0].finish()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE ballast (data text)")
        for size in (100_000, 1_000):
            with suppress(psycopg.errors.DiskFull):
                while True:
                    connection.execute(
                        "INSERT INTO ballast SELECT string_agg(md5(random()::text), '') FROM generate_series(1, %s)",
                        (size // 32,),
                    )
        with pytest.raises(StoreError, match="has no space left on its disk; free some, nothing was stored"):
            while True:
                scribes.append(Scribe.on(store, f"e{len(scribes)}"))
                await scribes[-1].finish()
        await check_logs(store, scribes)
        connection.execute("DROP TABLE ballast")
        # The one that was refused goes on from where it was.
        await scribes[-1].finish()
    await check_logs(store, scribes)
    await store.close()
    server.end()


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary that acknowledges nothing before its standby has it, and that standby."""
    primary = Server(fsync="on")
    standby = Server(standby_of=primary, fsync="on")
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
        while connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone() is None:
            connection.execute("SELECT pg_sleep(0.05)")
    yield primary, standby
    primary.end()
    standby.end()


@pytest.mark.exhaustive
async def test_what_was_acknowledged_survives_a_lost_primary_and_nobody_is_dead(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    database, turns = str(conninfo_to_dict(primary.make_database())["dbname"]), 25
    # Every server is named, so that a process finds the one that writes.
    url = make_conninfo(primary.url, dbname=database, host=",".join(str(server.folder) for server in pair))
    stores, hasty = [PostgresStore.open(url) for _ in range(2)], PostgresStore.open(url, gone_s=0.0)
    idle = [Scribe.on(store, f"idle {number}", owner=f"p{number}") for number, store in enumerate(stores)]
    scribes = [Scribe.on(stores[number % 2], f"e{number}", owner=f"p{number % 2}") for number in range(8)]
    for scribe in idle:
        # Nobody writes to these in between.
        await scribe.start()
    taken_for_dead, is_in_the_middle = set[str](), anyio.Event()

    async def look() -> None:
        while True:
            taken_for_dead.update(await hasty.orphans(10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        async with anyio.create_task_group() as toiling:
            for scribe in scribes:
                toiling.start_soon(toil, scribe, turns, is_in_the_middle.set)
            await is_in_the_middle.wait()
            await anyio.to_thread.run_sync(primary.stop, "immediate")
            acknowledged = [(scribe, tuple(scribe.written)) for scribe in scribes]
            await anyio.to_thread.run_sync(standby.promote)
            for scribe, before in acknowledged:
                assert (await stores[0].read(scribe.execution.execution_id))[: len(before)] == before
        await anyio.to_thread.run_sync(wait_for_locks, standby, database, [scribe.owner for scribe in idle])
        tasks.cancel_scope.cancel()
    assert taken_for_dead == set()
    await check_logs(stores[1], [*scribes, *idle])
    for scribe in (*scribes, *idle):
        assert scribe.lease is not None
        await scribe.store.confirm(scribe.lease)
    kinds = [row.entry.kind for row in await stores[0].audit_rows(limit=10_000)]
    assert kinds.count("decided") == len(scribes) * turns
    seen = (await stores[1].changes(0)).number
    await idle[0].finish()
    await stores[1].wait_for_changes(seen, 600)
    for store in (*stores, hasty):
        await store.close()


def wait_for_locks(server: Server, database: str, owners: list[str]) -> None:
    with psycopg.connect(server.url, dbname=database, autocommit=True) as connection:
        for owner in owners:
            while connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(owner),)).fetchone() == (True,):
                connection.execute("SELECT pg_advisory_unlock(%s)", (lock_key(owner),))
                connection.execute("SELECT pg_sleep(0.05)")
