"""PostgreSQL that goes away, freezes, slows down or stops writing under a store that is in use."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from planwarden.agent.common.errors import StoreError
from planwarden.storage.postgres import connection as connections
from planwarden.storage.postgres import reader, writer
from planwarden.storage.postgres.store import PostgresStore
from tests.storage.suite import Scribe, decided, guard
from tests.support.postgres import shared_server
from tests.support.proxy import HoldingProxy

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    with anyio.fail_after(60):
        yield


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[HoldingProxy]:
    made = HoldingProxy(shared_server().folder / ".s.PGSQL.5432", tmp_path)
    yield made
    made.close()


@pytest.fixture
async def store(url: str, proxy: HoldingProxy) -> AsyncGenerator[PostgresStore]:
    """Reaches its database through the proxy."""
    opened = PostgresStore.open(make_conninfo(url, host=str(proxy.path.parent)), control_url=url)
    yield opened
    proxy.let_go()
    await opened.close()


async def fails(call: Callable[[], Awaitable[object]], text: str) -> None:
    with pytest.raises(StoreError, match=text):
        await call()


async def test_the_times_add_up_to_what_is_promised() -> None:
    connecting_s = connections.CONNECT_S + max(writer.PAUSE_S, reader.PAUSE_S)
    assert max(connections.SILENT_S, writer.PATIENCE_S) + connecting_s <= 41


async def test_many_who_wait_for_a_frozen_server_are_all_told_when_the_first_one_is(
    store: PostgresStore, proxy: HoldingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    scribes = [Scribe.on(store, f"e{number}") for number in range(20)]
    await scribes[0].start()
    await store.header("e0")
    for module, name in ((connections, "SILENT_S"), (writer, "PATIENCE_S"), (reader, "PATIENCE_S")):
        monkeypatch.setattr(module, name, 0.3)
    monkeypatch.setattr(connections, "CONNECT_S", 2)
    proxy.hold()
    accepted = proxy.accepted
    async with anyio.create_task_group() as tasks:
        for scribe in scribes[1:]:
            tasks.start_soon(fails, scribe.start, "does not answer|cannot be reached")
            tasks.start_soon(fails, lambda: store.header("e0"), "does not answer|cannot be reached")
            if scribe is scribes[1]:
                # The threads begin with the first ones alone. All others ask at one moment, on a busy machine too.
                await anyio.sleep(0.01)
    # One for each thread and each one that it asked twice, not one for each request.
    assert proxy.accepted - accepted <= 8
    proxy.let_go()
    await scribes[0].suspend("s")
    assert await store.read("e0") == tuple(scribes[0].written)


async def test_an_append_to_a_server_that_froze_is_stored_once(
    store: PostgresStore, proxy: HoldingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SILENT_S", 0.3)
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    proxy.hold()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scribe.suspend, "s")
        await anyio.to_thread.run_sync(proxy.wait_for_client)
        proxy.let_go()
    assert await store.read("e1") == tuple(scribe.written)


async def test_a_slow_database_is_waited_for(store: PostgresStore, proxy: HoldingProxy, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION lag() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(0.2); RETURN new; END'"
        )
        connection.execute("CREATE TRIGGER lag BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION lag()")
    proxy.delay_s = 0.05
    scribes = [Scribe.on(store, f"e{number}") for number in range(5)]
    async with anyio.create_task_group() as tasks:
        for scribe in scribes:
            tasks.start_soon(scribe.suspend, f"s{scribe.execution.execution_id}")
    for scribe in scribes:
        assert await store.read(scribe.execution.execution_id) == tuple(scribe.written)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP FUNCTION lag() CASCADE")


async def test_a_database_that_stops_writing_says_so_and_stores_what_is_asked_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE_S", 3.0)
    store = PostgresStore.open(url)
    scribe = Scribe.on(store, "e1")
    await scribe.suspend("s")
    name = str(conninfo_to_dict(url)["dbname"])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await fails(lambda: scribe.write(decided("s"), guards=[guard("s")]), "is read-only; it may be a standby")
        assert await store.read("e1") == tuple(scribe.written)
        # Nobody ends the connections that were opened meanwhile, and which stay read-only.
        connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
        await scribe.write(decided("s"), guards=[guard("s")])
    assert await store.read("e1") == tuple(scribe.written)
    await store.close()
