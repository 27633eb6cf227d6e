"""Reading the SQLite file alone, as a command does that writes nothing."""

from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from planwarden.agent.common.errors import StoreError
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Lookups
from planwarden.storage.location import StoreLocation
from planwarden.storage.locks import WriteLock
from planwarden.storage.opening import open_lookups
from planwarden.storage.sql.lookups import SqlLookups
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.store import SqliteStore
from tests.storage.suite import Scribe, decided, guard
from tests.storage.test_sqlite import contents, edit
from tests.support.full_store import fill

pytestmark = pytest.mark.anyio

LOOKUPS: dict[str, Callable[[Lookups], Awaitable[object]]] = {
    "header": lambda store: store.header("finished z"),
    "read": lambda store: store.read("finished z", 1),
    "thread": lambda store: store.thread("thread"),
    "executions": lambda store: store.executions(None, 10),
    "executions of one": lambda store: store.executions("somebody", 10),
    "list": lambda store: store.list_executions(ExecutionFilter(), limit=3),
    "hosts": lambda store: store.list_hosts(),
    "walk": lambda store: store.walk("", 10),
    "start": lambda store: store.find_start("local", "monday"),
    "suspension": lambda store: store.find_suspension("s1"),
    "ids": lambda store: store.find_ids("s", 5),
    "suspensions": lambda store: store.suspensions(limit=1),
    "next suspensions": lambda store: store.suspensions(limit=1, cursor="s2"),
    "waiting": lambda store: store.waiting(limit=1),
    "decided": lambda store: store.decided(),
    "due": lambda store: store.due(5),
    "deadline": lambda store: store.next_deadline(),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "planwarden.db"


@pytest.fixture
async def filled(path: Path) -> Path:
    store = SqliteStore.open(path)
    await fill(store)
    await store.close()
    return path


@pytest.mark.parametrize("name", LOOKUPS)
async def test_reading_alone_says_what_the_whole_store_says(filled: Path, name: str) -> None:
    look = LOOKUPS[name]
    async with open_lookups(StoreLocation(path=filled)) as lookups:
        assert isinstance(lookups, SqlLookups) and not isinstance(lookups, SqliteStore)
        alone = await look(lookups)
    store = SqliteStore.open(filled)
    assert alone == await look(store)
    await store.close()


async def test_reading_alone_sees_what_a_running_process_committed_and_does_not_disturb_it(filled: Path) -> None:
    store = SqliteStore.open(filled)
    scribe = Scribe.on(store, "new", thread_id="another")
    await scribe.suspend("asked")
    async with open_lookups(StoreLocation(path=filled)) as lookups:
        assert await lookups.read("new") == await store.read("new")
        assert await lookups.find_suspension("asked") is not None
    await scribe.write(decided("asked"), guards=[guard("asked")])
    assert await store.read("new") == tuple(scribe.written)
    await store.close()


async def test_a_file_of_an_older_version_is_brought_up_to_date_before_it_is_read(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = [*database.migrations(), "CREATE TABLE news (text TEXT) STRICT;"]
    monkeypatch.setattr(database, "migrations", lambda: newer)
    async with open_lookups(StoreLocation(path=filled)) as lookups:
        assert isinstance(lookups, SqliteStore)
        assert await lookups.header("finished z") is not None
    async with open_lookups(StoreLocation(path=filled)) as lookups:
        assert isinstance(lookups, SqlLookups) and not isinstance(lookups, SqliteStore)


async def test_a_file_that_must_not_be_used_is_refused_and_left_as_it_was(filled: Path) -> None:
    edit(filled, "PRAGMA application_id = 1")
    before = contents(filled.parent)
    with pytest.raises(StoreError, match="another application"):
        async with open_lookups(StoreLocation(path=filled)):
            raise AssertionError("it was opened")
    assert contents(filled.parent) == before


async def test_a_reader_that_closes_while_another_process_writes_does_not_wait(filled: Path) -> None:
    with closing(WriteLock(filled.with_name(filled.name + ".lock"))) as lock, lock.held():
        async with open_lookups(StoreLocation(path=filled)) as lookups:
            assert await lookups.executions(None, 1)


async def test_a_closed_reader_refuses_to_read(filled: Path) -> None:
    async with open_lookups(StoreLocation(path=filled)) as lookups:
        pass
    with pytest.raises(StoreError):
        await lookups.header("finished z")
