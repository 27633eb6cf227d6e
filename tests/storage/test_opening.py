"""Opening a store: the URLs that name one, and reading the SQLite file alone, as a command does that writes nothing."""

from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Lookups
from planwarden.storage.location import StoreLocation, read_location
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
    with closing(WriteLock(filled.with_name(filled.name + ".lock"))) as lock, lock.held():
        # Another process that writes is not waited for.
        async with open_lookups(StoreLocation(path=filled)) as lookups:
            assert isinstance(lookups, SqlLookups) and not isinstance(lookups, SqliteStore)
            alone = await look(lookups)
    with pytest.raises(StoreError):
        await look(lookups)
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


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_of_postgresql_names_it(scheme: str) -> None:
    found = read_location(f"{scheme}://ann:secret@db.example:5433/plans", "postgresql://ann@direct/plans")
    assert found.path is None
    assert found.url == f"{scheme}://ann:secret@db.example:5433/plans"
    assert found.control_url == "postgresql://ann@direct/plans"
    assert found.is_made


def test_what_names_a_location_has_no_password() -> None:
    found = read_location("postgresql://ann:secret@db.example:5433/plans?password=secret")
    assert str(found) == "postgresql://db.example:5433/plans"
    assert "secret" not in repr(found)
    assert found.has_password
    assert not read_location("postgresql://ann@db.example/plans").has_password


def test_a_url_of_sqlite_names_a_file(tmp_path: Path) -> None:
    assert read_location("sqlite:////var/lib/plans.db") == StoreLocation(path=Path("//var/lib/plans.db"))
    found = read_location(f"sqlite://{tmp_path}/plans.db")
    assert found.path == tmp_path / "plans.db"
    assert not found.is_made
    assert read_location("sqlite:///~/plans.db").path == Path.home() / "plans.db"


@pytest.mark.parametrize(
    "url",
    ["mysql://ann:secret@host/x", "secret", "sqlite://relative/secret.db", "sqlite://", "postgresql://host:secret/x"],
)
def test_any_other_text_is_refused_with_the_known_forms_and_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidArguments, match="sqlite:///FILE") as refused:
        read_location(url)
    assert "secret" not in str(refused.value)
    with pytest.raises(InvalidArguments, match="control URL"):
        read_location("postgresql://host/x", "sqlite:///x")
