"""Connections to PostgreSQL: how they are opened, what their errors mean, and the schema.

Nothing here needs more than a managed PostgreSQL gives, and nothing but the control connection keeps state between two
transactions, so the others may go through a pooler such as PgBouncer.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from planwarden.agent.common.errors import StoreError
from planwarden.storage.postgres.statements import SQL

Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST = 14
"""The oldest major version of the server."""
CONNECT_S = 10
LOST = (psycopg.OperationalError, psycopg.InterfaceError)
"""The connection broke, or there is none; whether the last statement was committed is unknown."""
AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)
"""Nothing was done, and the same transaction may succeed now."""
_MIGRATING = 7_811_887_001
"""The advisory lock of whoever changes the schema."""


def connect(url: str) -> Connection:
    """A connection on which every statement is a transaction of its own, unless one was begun.

    Raises:
        psycopg.OperationalError: the server cannot be reached or refuses.
    """
    return psycopg.connect(
        url,
        autocommit=True,
        # A pooler hands the next transaction to a server that knows no statement prepared before.
        prepare_threshold=None,
        cursor_factory=psycopg.RawCursor,
        connect_timeout=CONNECT_S,
        application_name="planwarden",
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=20_000,
    )


def run(connection: Connection, name: str, parameters: Sequence[object] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
    """Run the statement `name`."""
    return connection.execute(SQL[name].encode(), parameters)


def name_server(url: str) -> str:
    """Host, port and database, without user and password."""
    try:
        found = conninfo_to_dict(url)
    except psycopg.Error:
        return "PostgreSQL"
    host, port, database = found.get("host") or "localhost", found.get("port") or 5432, found.get("dbname") or ""
    return f"PostgreSQL at {host}:{port}/{database}"


def store_error(error: Exception, url: str) -> StoreError:
    """The driver's error as ours: what happened where, and what to do. It holds no password and no row."""
    where = name_server(url)
    match error:
        case errors.DiskFull():
            text = f"the disk of {where} is full; free some space, nothing was lost"
        case errors.ReadOnlySqlTransaction():
            text = f"{where} is read-only; it may be a standby: use the address of the primary"
        case errors.InsufficientPrivilege() | errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
            text = f"{where} refuses the user of the URL; check its name, password and rights"
        case errors.UntranslatableCharacter() | errors.CharacterNotInRepertoire() | psycopg.DataError():
            text = f"{where} cannot hold a text with NUL or without UTF-8; nothing was stored"
        case psycopg.OperationalError() | psycopg.InterfaceError():
            text = f"{where} cannot be reached or ended the connection; check that it runs, nothing was lost"
        case _:
            text = f"{where} refused a statement ({type(error).__name__}); see its log"
    failed = StoreError(text)
    failed.__cause__ = error
    return failed


def migrate(connection: Connection, url: str) -> None:
    """Bring the schema to the newest version, all processes one after the other.

    Raises:
        StoreError: the database is too old, foreign, or was written by a newer planwarden; it was left as it was.
    """
    version = connection.info.server_version // 10_000
    if version < OLDEST:
        raise StoreError(f"{name_server(url)} has version {version}; planwarden needs {OLDEST} or newer")
    steps = _read_migrations()
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", (_MIGRATING,))
        known = connection.execute("SELECT to_regclass('schema_versions')").fetchone()
        if known == (None,):
            if connection.execute("SELECT to_regclass('executions')").fetchone() != (None,):
                raise StoreError(f"{name_server(url)} belongs to another application; it was left untouched")
            connection.execute("CREATE TABLE schema_versions (version integer PRIMARY KEY)")
        row = connection.execute("SELECT coalesce(max(version), 0) FROM schema_versions").fetchone()
        current = 0 if row is None else int(row[0])
        if current > len(steps):
            raise StoreError(
                f"{name_server(url)} was written by a newer planwarden (schema {current}, this one knows "
                f"{len(steps)}); update planwarden; the database was left untouched"
            )
        for number, script in enumerate(steps[current:], current + 1):
            connection.execute(script.encode())
            connection.execute("INSERT INTO schema_versions VALUES ($1)", (number,))


def _read_migrations() -> list[str]:
    folder = files("planwarden.storage.postgres").joinpath("migrations")
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [entry.read_text(encoding="utf-8") for entry in found]
