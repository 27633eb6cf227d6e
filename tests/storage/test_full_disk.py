"""PostgreSQL without space: who writes is told, what was acknowledged is there, and there is a way on."""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import anyio
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from planwarden.agent.common.errors import StoreError
from planwarden.storage.postgres.store import PostgresStore
from tests.storage.suite import Scribe
from tests.support.postgres import Server

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    with anyio.fail_after(120):
        yield


@pytest.fixture
def small() -> Iterator[tuple[Server, str]]:
    """A server, and a database of it that has 24 MB for its tables."""
    server = Server(mounts_small_disk=True)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{server.small_disk}'".encode())
        connection.execute("CREATE DATABASE plans TABLESPACE small")
    url = make_conninfo(server.url, dbname="plans")
    yield server, url
    server.end()


async def test_a_full_disk_is_said_nothing_acknowledged_is_lost_and_space_lets_it_go_on(
    small: tuple[Server, str],
) -> None:
    url = small[1]
    store = PostgresStore.open(url)
    acknowledged = [Scribe.on(store, "before")]
    await acknowledged[0].finish()
    scribe = Scribe.on(store, "e1")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE ballast (data text)")
        for size in (100_000, 1_000):
            fill(connection, size)
        with pytest.raises(StoreError, match="has no space left on its disk; free some, nothing was stored"):
            while True:
                await scribe.finish()
                acknowledged.append(scribe)
                scribe = Scribe.on(store, f"e{len(acknowledged)}")
        for one in acknowledged:
            assert await store.read(one.execution.execution_id) == tuple(one.written)
        connection.execute("DROP TABLE ballast")
        # The one that was refused goes on from where it was.
        await scribe.finish()
    assert await store.read(scribe.execution.execution_id) == tuple(scribe.written)
    await store.close()


def fill(connection: "psycopg.Connection[tuple[object, ...]]", size: int) -> None:
    """Write rows of about this size until there is no space."""
    with suppress(psycopg.errors.DiskFull):
        while True:
            connection.execute(
                "INSERT INTO ballast SELECT string_agg(md5(random()::text), '') FROM generate_series(1, %s)",
                (size // 32,),
            )
