"""PostgreSQL behind PgBouncer in transaction mode; every law of the store is tested through it in `test_laws.py`."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from planwarden.agent.common.errors import StoreError
from planwarden.storage.postgres.store import PostgresStore
from tests.storage.suite import Scribe, decided, guard
from tests.support.certificates import make_certificate
from tests.support.pooler import Pooler, shared_pooler
from tests.support.postgres import Server, shared_server

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    with anyio.fail_after(120):
        yield


async def test_a_pooler_is_refused_where_only_it_is_named(url: str) -> None:
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:\d+/test_\w+ is a pooler .* PLANWARDEN_STORE_CONTROL"):
        PostgresStore.open(shared_pooler().lead_to(url))


async def toil(scribe: Scribe) -> None:
    await scribe.start()
    for number in range(10):
        name = f"{scribe.execution.execution_id} {number}"
        await scribe.suspend(name)
        await scribe.write(decided(name), guards=[guard(name)])


@pytest.mark.parametrize("dies", ["pooler", "server"])
async def test_a_pooler_or_a_server_behind_it_that_starts_again_loses_nothing_that_was_acknowledged(dies: str) -> None:
    server = Server(fsync="on")
    pooler = Pooler(server)
    database = server.make_database()
    store = PostgresStore.open(pooler.lead_to(database), control_url=database)
    scribes = [Scribe.on(store, f"e{number}") for number in range(6)]
    async with anyio.create_task_group() as tasks:
        for scribe in scribes:
            tasks.start_soon(toil, scribe)
        if dies == "pooler":
            await anyio.to_thread.run_sync(pooler.stop)
            await anyio.to_thread.run_sync(pooler.start)
        else:
            await anyio.to_thread.run_sync(server.stop, "immediate")
            await anyio.to_thread.run_sync(server.start)
    for scribe in scribes:
        assert await store.read(scribe.execution.execution_id) == tuple(scribe.written)
        assert len(scribe.written) == 3 + 10 * 3
    await store.close()
    pooler.end()
    server.end()


async def test_a_pooler_without_a_free_place_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planwarden.storage.postgres.reader.PATIENCE_S", 0.3)
    pooler = Pooler(shared_server(), max_client_conn="1")
    first = PostgresStore.open(pooler.lead_to(url), control_url=url)
    await first.header("e1")
    second = PostgresStore.open(pooler.lead_to(url), control_url=url)
    with pytest.raises(StoreError, match="has no free connection"):
        await second.header("e1")
    for store in (first, second):
        await store.close()
    pooler.end()


async def test_tls_is_spoken_where_it_is_required_and_a_certificate_that_nobody_signed_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planwarden.storage.postgres.reader.PATIENCE_S", 0.3)
    certificate, key = make_certificate()
    pooler = Pooler(
        shared_server(),
        {"server.crt": certificate, "server.key": key},
        client_tls_sslmode="require",
        client_tls_cert_file="server.crt",
        client_tls_key_file="server.key",
    )
    (tmp_path / "root.crt").write_text(certificate)
    trusting = f"sslmode=verify-full sslrootcert={tmp_path / 'root.crt'}"
    for tls in ("sslmode=require", trusting):
        store = PostgresStore.open(f"{pooler.lead_to(url)} {tls}", control_url=url)
        assert await store.header("e1") is None
        await store.close()
    (tmp_path / "other.crt").write_text(make_certificate()[0])
    for tls in ("sslmode=disable", f"sslmode=verify-full sslrootcert={tmp_path / 'other.crt'}"):
        with pytest.raises(StoreError, match="does not agree on TLS; check sslmode and the certificates"):
            PostgresStore.open(f"{pooler.lead_to(url)} {tls}")
    pooler.end()
