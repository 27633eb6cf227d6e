"""Fail-over to a standby under load: what was acknowledged is there, nothing is there twice, everybody goes on."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from planwarden.storage.postgres.control import lock_key
from planwarden.storage.postgres.store import PostgresStore
from tests.storage.suite import Scribe, decided, guard
from tests.support.postgres import Server

pytestmark = pytest.mark.anyio

TURNS = 25
"""Questions that each writer asks and answers."""


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    with anyio.fail_after(120):
        yield


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


def url_of(*servers: Server, database: str) -> str:
    """Names every server, so that a process finds the one that writes."""
    return make_conninfo(servers[0].url, dbname=database, host=",".join(str(server.folder) for server in servers))


@dataclass
class Load:
    """Writers on several stores, and what somebody sees who takes a process for dead as soon as its lock is free."""

    stores: list[PostgresStore]
    hasty: PostgresStore
    scribes: list[Scribe]
    held: list[Scribe]
    """Executions that nobody writes to meanwhile."""
    is_in_the_middle: anyio.Event = field(default_factory=anyio.Event)
    taken_for_dead: set[str] = field(default_factory=set[str])

    @classmethod
    async def on(cls, url: str) -> "Load":
        stores = [PostgresStore.open(url) for _ in range(2)]
        held = [Scribe.on(store, f"held {number}", owner=f"p{number}") for number, store in enumerate(stores)]
        for scribe in held:
            await scribe.start()
        scribes = [Scribe.on(stores[number % 2], f"e{number}", owner=f"p{number % 2}") for number in range(8)]
        return cls(stores, PostgresStore.open(url, gone_s=0.0), scribes, held)

    async def toil(self, scribe: Scribe) -> None:
        await scribe.start()
        for number in range(TURNS):
            name = f"{scribe.execution.execution_id} {number}"
            await scribe.suspend(name)
            await scribe.write(decided(name), guards=[guard(name)])
            if number == TURNS // 5:
                self.is_in_the_middle.set()

    async def look(self) -> None:
        while True:
            self.taken_for_dead.update(await self.hasty.orphans(10))

    async def check(self) -> None:
        """Every log is what its writer was told, and every lease is still its holder's."""
        assert self.taken_for_dead == set()
        for scribe in (*self.scribes, *self.held):
            assert await self.stores[1].read(scribe.execution.execution_id) == tuple(scribe.written)
            assert scribe.lease is not None
            await scribe.store.confirm(scribe.lease)
        kinds = [row.entry.kind for row in await self.stores[0].audit_rows(limit=10_000)]
        assert kinds.count("decided") == len(self.scribes) * TURNS

    async def close(self) -> None:
        for store in (*self.stores, self.hasty):
            await store.close()


async def test_what_was_acknowledged_survives_the_loss_of_the_primary_and_nobody_is_taken_for_dead(
    pair: tuple[Server, Server],
) -> None:
    primary, standby = pair
    database = str(conninfo_to_dict(primary.make_database())["dbname"])
    load = await Load.on(url_of(primary, standby, database=database))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load.look)
        async with anyio.create_task_group() as toiling:
            for scribe in load.scribes:
                toiling.start_soon(load.toil, scribe)
            await load.is_in_the_middle.wait()
            await anyio.to_thread.run_sync(primary.stop, "immediate")
            acknowledged = [(scribe, tuple(scribe.written)) for scribe in load.scribes]
            await anyio.to_thread.run_sync(standby.promote)
            for scribe, before in acknowledged:
                found = await load.stores[0].read(scribe.execution.execution_id)
                assert found[: len(before)] == before
        await anyio.to_thread.run_sync(wait_for_locks, standby, database, [scribe.owner for scribe in load.held])
        tasks.cancel_scope.cancel()
    await load.check()
    seen = (await load.stores[1].changes(0)).number
    await load.held[0].finish()
    await load.stores[1].wait_for_changes(seen, 600)
    await load.close()


def wait_for_locks(server: Server, database: str, owners: list[str]) -> None:
    """Return when each owner holds its lock."""
    with psycopg.connect(server.url, dbname=database, autocommit=True) as connection:
        for owner in owners:
            while connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(owner),)).fetchone() == (True,):
                connection.execute("SELECT pg_advisory_unlock(%s)", (lock_key(owner),))
                connection.execute("SELECT pg_sleep(0.05)")
