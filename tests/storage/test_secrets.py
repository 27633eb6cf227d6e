"""Secrets of a home: the same laws in files and in PostgreSQL, where nobody reads or changes them without the key."""

import base64
import json
import stat
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import psycopg
import pytest

from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.agent.ports.environment import SecretStore
from planwarden.storage.postgres.store import PostgresStore
from planwarden.storage.sealing import CHECK, SealedSecrets, make_secret_key
from planwarden.storage.secret_files import MAX_SECRET_BYTES, SECRET_KEY_VARIABLE, SecretFiles
from tests.requirements import requirement

KEY = base64.b64encode(bytes(range(32))).decode()
NAME = "downstream/mail.login"


@pytest.fixture(params=["files", "postgres"])
async def processes(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> AsyncGenerator[list[SecretStore]]:
    """Four processes of one home."""
    async with AsyncExitStack() as stack:
        if request.param == "files":
            yield [SecretFiles(tmp_path) for _ in range(4)]
        else:
            yield [await stack.enter_async_context(opened(url)) for _ in range(4)]


@asynccontextmanager
async def opened(url: str, key: str = KEY) -> AsyncGenerator[SealedSecrets]:
    store = PostgresStore.open(url)
    try:
        yield SealedSecrets(store, key)
    finally:
        await store.close()


def run_sql(url: str, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def check_private(folder: Path) -> None:
    for file in (path for path in folder.rglob("*") if path.is_file()):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@requirement("secrets:shared")
async def test_what_one_process_stores_the_others_read_until_one_deletes_it(
    processes: list[SecretStore], tmp_path: Path
) -> None:
    one, other, *_ = processes
    assert await one.read(NAME) is None and await one.version(NAME) is None
    await one.replace(NAME, b"x" * MAX_SECRET_BYTES)
    with pytest.raises(StoreError):
        await one.replace(NAME, b"y" * (MAX_SECRET_BYTES + 1))
    assert await other.read(NAME) == b"x" * MAX_SECRET_BYTES
    check_private(tmp_path)
    versions: list[str | None] = []
    for value in (b"first", b"second", b"second", b""):
        await one.replace(NAME, value)
        assert await other.read(NAME) == value
        versions.append(await other.version(NAME))
    assert len(set(versions)) == 4 and None not in versions
    assert await other.read("downstream/other.login") is None
    assert await other.delete(NAME) and not await one.delete(NAME)
    assert await one.read(NAME) is None and await one.version(NAME) is None


@requirement("secrets:shared")
async def test_processes_that_start_at_once_agree_on_one_value(processes: list[SecretStore]) -> None:
    found: list[bytes] = []

    async def create(process: SecretStore, value: bytes) -> None:
        found.append(await process.create("request-state.key", value))

    async with anyio.create_task_group() as tasks:
        for number, process in enumerate(processes * 4):
            tasks.start_soon(create, process, b"%d" % number)
    assert len(found) == 16 and len(set(found)) == 1
    assert await processes[0].read("request-state.key") == found[0]


@requirement("downstream:login")
async def test_one_process_at_a_time_holds_the_lock_on_a_name(processes: list[SecretStore]) -> None:
    inside = most = 0

    async def use(process: SecretStore) -> None:
        nonlocal inside, most
        async with process.lock(NAME), process.lock("another name"):
            inside += 1
            most = max(most, inside)
            await process.version(NAME)
            inside -= 1

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for process in processes:
                tasks.start_soon(use, process)
    assert most == 1


async def test_who_waits_too_long_for_a_lock_says_so(
    processes: list[SecretStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sealing", "secret_files"):
        monkeypatch.setattr(f"planwarden.storage.{module}.LOCK_TIMEOUT_S", 0.05)
    async with processes[0].lock(NAME):
        with pytest.raises(StoreError, match="another process has locked"):
            async with processes[1].lock(NAME):
                pass
    async with processes[1].lock(NAME):
        pass


async def test_a_lock_of_a_process_that_died_ends(url: str) -> None:
    store = PostgresStore.open(url)
    try:
        secrets = SealedSecrets(store, KEY)
        assert await secrets.take_lock(NAME, "dead", 60.0)
        assert not await secrets.take_lock(NAME, "alive", 60.0)
        # The answer to a commit can be lost, and the holder then asks again.
        assert await secrets.take_lock(NAME, "dead", 0.2)
        with anyio.fail_after(60):
            async with secrets.lock(NAME):
                await secrets.free_lock(NAME, "dead")
                assert not await secrets.take_lock(NAME, "another", 60.0)
    finally:
        await store.close()


@requirement("secrets:sealed")
async def test_the_database_holds_nothing_that_its_reader_could_use(url: str) -> None:
    async with opened(url) as secrets:
        await secrets.replace(NAME, b"access-token-of-ann")
        await secrets.replace("other", b"access-token-of-ann")
    rows = run_sql(url, "SELECT id, body FROM records")
    assert {name for name, _ in rows} == {CHECK, NAME, "other"}
    sealed = [base64.b64decode(json.loads(str(body))["sealed"]) for _, body in rows]
    assert len(set(sealed)) == 3 and not any(b"ann" in value or b"planwarden" in value for value in sealed)


@requirement("secrets:sealed")
@pytest.mark.parametrize(
    "change",
    [
        "set_byte(a, 0, get_byte(a, 0) # 1)",
        "set_byte(a, 5, get_byte(a, 5) # 1)",
        "set_byte(a, 20, get_byte(a, 20) # 1)",
        "substring(a for 9)",
        "''",
        "b",
        "checked",
    ],
)
async def test_a_row_that_was_changed_or_moved_is_refused(url: str, change: str) -> None:
    async with opened(url) as secrets:
        await secrets.replace("a", b"the value of a")
        await secrets.replace("b", b"the value of b")
        sealed = "SELECT decode(body::json->>'sealed', 'base64') FROM records WHERE id ="
        values = f"SELECT ({sealed} 'a') AS a, ({sealed} 'b') AS b, ({sealed} 'check') AS checked"
        body = f"json_build_object('sealed', encode({change}, 'base64'))"
        run_sql(url, f"WITH v AS ({values}) UPDATE records SET body = {body} FROM v WHERE id = 'a'")
        with pytest.raises(StoreError, match="the secret 'a' of the store was changed"):
            await secrets.read("a")
        assert await secrets.read("b") == b"the value of b"
        await secrets.replace("a", b"made again")
        assert await secrets.read("a") == b"made again"


@requirement("secrets:key")
async def test_a_wrong_key_is_refused_and_changes_nothing(url: str) -> None:
    async with opened(url) as secrets:
        assert not await secrets.is_in_use()
        await secrets.check()
        await secrets.replace(NAME, b"kept")
        assert await secrets.is_in_use()
    before = run_sql(url, "SELECT * FROM records ORDER BY id")
    async with opened(url, make_secret_key()) as wrong:
        for use in (
            wrong.check(),
            wrong.is_in_use(),
            wrong.read(NAME),
            wrong.replace("new", b"x"),
            wrong.create("n", b""),
        ):
            with pytest.raises(UsageError, match=f"{SECRET_KEY_VARIABLE} is not the key of this store"):
                await use
        # Names and versions are no secrets.
        assert await wrong.read("missing") is None and await wrong.version(NAME) is not None
    assert run_sql(url, "SELECT * FROM records ORDER BY id") == before


@requirement("secrets:key")
@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "is not set"),
        ("hidden", "is not 32 bytes in base64"),
        (KEY[:-4], "is not 32 bytes in base64"),
        (KEY + KEY, "is not 32 bytes in base64"),
        ("ä" * 44, "is not 32 bytes in base64"),
    ],
)
async def test_a_missing_or_damaged_key_is_refused_with_the_command_for_one(url: str, key: str, said: str) -> None:
    async with opened(url, key) as secrets:
        with pytest.raises(UsageError, match="planwarden key new-secret") as refused:
            await secrets.check()
    assert said in refused.value.message and (not key or key not in refused.value.message)


@requirement("secrets:key")
async def test_of_two_processes_with_different_keys_the_first_one_gives_the_store_its_key(url: str) -> None:
    refused: list[UsageError] = []

    async def start(secrets: SealedSecrets) -> None:
        try:
            await secrets.check()
        except UsageError as error:
            refused.append(error)

    async with opened(url) as one, opened(url, make_secret_key()) as other, anyio.create_task_group() as tasks:
        tasks.start_soon(start, one)
        tasks.start_soon(start, other)
    assert len(refused) == 1


async def test_deleting_says_whether_there_was_a_secret_and_takes_along_what_a_dead_writer_left(tmp_path: Path) -> None:
    (tmp_path / "downstream").mkdir()
    leftover = tmp_path / "downstream" / ".mail.login.a1.tmp"
    leftover.write_bytes(b"half")
    assert not await SecretFiles(tmp_path).delete(NAME) and not leftover.exists()
