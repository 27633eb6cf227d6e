"""What an operator reads when PostgreSQL refuses a process that starts: host and port, what to do, never a password."""

import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from planwarden.agent.common.errors import StoreError
from planwarden.storage.postgres import connection as connections
from planwarden.storage.postgres.connection import name_server
from planwarden.storage.postgres.store import PostgresStore
from tests.support.ports import take_port
from tests.support.postgres import Server
from tests.support.proxy import HoldingProxy


@pytest.fixture(scope="module")
def strict() -> Generator[tuple[Server, str]]:
    """A server with few connections that asks for passwords on its port, and the URL of a user of it."""
    port = str(take_port())
    server = Server(
        ["local all all trust", "host all bob all reject", "host all all 127.0.0.1/32 scram-sha-256"],
        listen_addresses="127.0.0.1",
        port=port,
        max_connections="8",
        superuser_reserved_connections="3",
    )
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE ann LOGIN PASSWORD 'secret'")
        connection.execute("CREATE DATABASE plans OWNER ann")
    yield server, f"postgresql://ann:secret@127.0.0.1:{port}/plans"
    server.end()


def refusal(url: str) -> str:
    """The message of a store that cannot be opened."""
    with pytest.raises(StoreError) as refused:
        PostgresStore.open(url)
    assert name_server(url) in refused.value.message
    assert not re.search("secret|wrong|ann\\b", refused.value.message)
    return refused.value.message


def test_a_wrong_password_and_an_unknown_user_are_refused_as_such(strict: tuple[Server, str]) -> None:
    url = strict[1]
    assert "refuses the user of the URL; check its name, password" in refusal(url.replace(":secret", ":wrong"))
    assert "refuses the user of the URL" in refusal(url.replace(":secret", ""))
    assert "refuses the user of the URL" in refusal(url.replace("ann:", "ann-who-left:"))


def test_a_database_that_does_not_exist_is_named(strict: tuple[Server, str]) -> None:
    assert "/nowhere has no such database; create it" in refusal(strict[1].replace("/plans", "/nowhere"))


def test_a_user_who_may_not_make_tables_is_told_to_check_its_rights(strict: tuple[Server, str]) -> None:
    assert "check its name, password and rights" in refusal(strict[1].replace("/plans", "/postgres"))


def test_tls_that_the_server_does_not_speak_is_said(strict: tuple[Server, str]) -> None:
    assert "does not agree on TLS; check sslmode" in refusal(f"{strict[1]}?sslmode=require")


def test_a_server_that_lets_in_only_who_speaks_tls_says_so(strict: tuple[Server, str]) -> None:
    assert "check the URL's sslmode and user" in refusal(strict[1].replace("ann:", "bob:"))


def test_a_server_without_a_free_connection_is_said_to_have_none(strict: tuple[Server, str]) -> None:
    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(psycopg.connect(strict[1]))
        assert "has no free connection; raise its max_connections" in refusal(strict[1])
        for _ in range(3):
            held.enter_context(psycopg.connect(strict[0].url))
        assert "has no free connection; raise its max_connections" in refusal(strict[1])


def test_a_server_that_only_reads_is_said_to_be_perhaps_a_standby(strict: tuple[Server, str]) -> None:
    with psycopg.connect(strict[0].url, autocommit=True) as connection:
        connection.execute("ALTER DATABASE plans SET default_transaction_read_only = on")
        assert "is read-only; it may be a standby: use the address of the primary" in refusal(strict[1])
        connection.execute("ALTER DATABASE plans RESET default_transaction_read_only")


def test_of_several_servers_none_of_which_writes_each_is_named(strict: tuple[Server, str]) -> None:
    port = conninfo_to_dict(strict[1])["port"]
    with psycopg.connect(strict[0].url, autocommit=True) as connection:
        connection.execute("ALTER DATABASE plans SET default_transaction_read_only = on")
        both = f"postgresql://ann:secret@127.0.0.1:{port},localhost:1/plans"
        assert refusal(both).startswith(f"PostgreSQL at 127.0.0.1:{port},localhost:1/plans ")
        connection.execute("ALTER DATABASE plans RESET default_transaction_read_only")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[HoldingProxy]:
    """Accepts connections and says nothing."""
    proxy = HoldingProxy(tmp_path / "none", tmp_path)
    proxy.hold()
    yield proxy
    proxy.close()


def test_a_server_that_accepts_and_says_nothing_is_given_up(
    silent: HoldingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connections.CONNECT_S < 45
    monkeypatch.setattr(connections, "CONNECT_S", 2)
    assert "does not answer; check that it runs" in refusal(f"postgresql:///plans?host={silent.path.parent}")


def test_a_url_that_is_none_is_not_repeated() -> None:
    with pytest.raises(StoreError, match="the URL of the store is not one of PostgreSQL") as refused:
        PostgresStore.open("postgresql://ann:secret@host:port:x/y?nothing=secret")
    assert "secret" not in refused.value.message
