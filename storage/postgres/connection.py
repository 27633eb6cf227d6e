"""Connections to PostgreSQL: how they are opened, what their errors mean, the schema, and the mark of a move.

A managed PostgreSQL offers everything that planwarden needs. Only the control connection keeps state between
transactions, so all others may go through a pooler such as PgBouncer.
"""

import re
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from planwarden.agent.common.errors import StoreError, StoreReplaced
from planwarden.storage.location import MARK_TABLE, MARKED, MoveMark
from planwarden.storage.sql.schema import load_migrations, load_statements, refuse_unreplayable

DIALECT = (
    # Drop SQLite's hints: PostgreSQL's planner itself chooses indexes and the order of joins.
    (r" INDEXED BY \w+( CROSS(?= JOIN))?", ""),
    (r"\bnext_number\(\)", "nextval(pg_get_serial_sequence('executions', 'number'))"),
    (r"\bclock\((\$\d+)\)", r"coalesce(\1::float8, extract(epoch FROM clock_timestamp()))"),
)
SQL: dict[str, str] = load_statements(Path(__file__).parent, DIALECT)


def read_migrations() -> list[str]:
    """Return the scripts that bring a database from one schema to the next, oldest first."""
    return load_migrations(Path(__file__).parent, DIALECT)


Connection = psycopg.Connection[tuple[Any, ...]]
Value = TypeVar("Value")

OLDEST = 14
"""The oldest major version of PostgreSQL that works."""
CONNECT_S = 10
"""Seconds to connect, shared by all servers that a URL names; each gets at least 2."""
SILENT_S = 30.0
"""A server that owes an answer and sends nothing for this many seconds counts as gone."""
LOST = (psycopg.OperationalError, psycopg.InterfaceError)
"""Errors of a connection that broke or could not be made; whether its last statement was committed is unknown."""
TRANSIENT_ERRORS = (errors.DeadlockDetected, errors.SerializationFailure, errors.UniqueViolation)
"""Errors that mean nothing was written. A retry may succeed, or find the row that a concurrent transaction wrote."""
MIGRATION_LOCK = 7_811_887_001
"""The advisory lock of the process that changes the schema."""
IN_USE_LOCK = 7_811_887_002
"""The advisory lock that is shared by all processes that have the store open."""
_UNREADABLE = "PostgreSQL"
"""What messages call a server whose URL cannot be parsed."""


class _TimeoutConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that closes itself when the server owes an answer and is silent for `SILENT_S`. Otherwise callers
    would wait hours for a frozen server, because the server's network stack still acknowledges packets."""

    def wait(self, gen: Generator[Any, Any, Value], *args: Any, **limits: Any) -> Value:
        return super().wait(self._give_up(gen), *args, **limits)

    def _give_up(self, gen: Generator[Any, Any, Value]) -> Generator[Any, Any, Value]:
        heard_at = monotonic()
        try:
            wait = next(gen)
            while True:
                ready = yield wait
                if ready:
                    heard_at = monotonic()
                elif monotonic() - heard_at > SILENT_S:
                    self.pgconn.finish()
                    raise errors.ConnectionTimeout("the server does not answer")
                wait = gen.send(ready)
        except StopIteration as end:
            return end.value


def connect(url: str, *, prepares: bool = False) -> Connection:
    """Return a connection on which each statement outside an explicit transaction is a transaction of its own. If the
    URL names several servers, the connection leads to the one that accepts writes. With `prepares`, the server keeps
    the query plans of frequent statements.

    Raises:
        psycopg.OperationalError: the server cannot be reached or refuses.
    """
    parameters = conninfo_to_dict(url)
    hosts = str(parameters.get("host") or "").split(",")
    session_attrs = parameters.get("target_session_attrs") or ("any" if len(hosts) == 1 else "read-write")
    return _TimeoutConnection.connect(
        url,
        autocommit=True,
        # A pooler may hand the next transaction to a server process that has not prepared the same statements.
        prepare_threshold=5 if prepares else None,
        cursor_factory=psycopg.RawCursor,
        connect_timeout=max(2, CONNECT_S // len(hosts)),
        application_name="planwarden",
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=20_000,
        target_session_attrs=session_attrs,
    )


def run(connection: Connection, name: str, parameters: Sequence[object] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
    """Run the statement `name` of `SQL`, and return the cursor with its rows."""
    return connection.execute(SQL[name].encode(), parameters)


def name_server(url: str) -> str:
    """Return hosts, ports and database for messages, without user or password; `_UNREADABLE` if `url` is malformed."""
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.Error:
        return _UNREADABLE
    hosts = str(parameters.get("host") or "localhost").split(",")
    ports = str(parameters.get("port") or 5432).split(",")
    names = [f"{host}:{ports[index] if index < len(ports) else ports[-1]}" for index, host in enumerate(hosts)]
    return f"PostgreSQL at {','.join(names)}/{parameters.get('dbname') or ''}"


def to_store_error(error: Exception, url: str) -> StoreError:
    """Return a `StoreError` that names the server, the problem and the remedy, but never a password or a row's data."""
    if isinstance(error, psycopg.Error) and error.sqlstate == REFUSED:
        replaced = StoreReplaced(
            f"{name_server(url)} {error.diag.message_primary}, and nothing more is written; end every planwarden "
            "process that uses it, then set PLANWARDEN_STORE"
        )
        replaced.__cause__ = error
        return replaced
    if isinstance(error, psycopg.ProgrammingError) and name_server(url) == _UNREADABLE:
        # The driver's own words would repeat parts of the URL.
        return StoreError("the URL of the store is not one of PostgreSQL: postgresql://USER@HOST/DATABASE")
    failed = StoreError(f"{name_server(url)} {_explain(error)}")
    failed.__cause__ = error
    return failed


_READ_ONLY = "is read-only; it may be a standby: use the address of the primary"
_REFUSES = "refuses the user of the URL; check its name, password and rights"
_REFUSALS = {
    r'database "[^"]*" does not exist': "has no such database; create it with createdb",
    "too many c|connection slots|no more connections": "has no free connection; raise its max_connections, or run less",
    "pg_hba.*no encryption": "refuses this login without TLS; check the URL's sslmode and user",
    "SSL|certificate": "does not agree on TLS; check sslmode and the certificates of the URL",
    "read-only|hot standby": _READ_ONLY,
    "authentication|password|pg_hba|role |permission denied": _REFUSES,
    "starting up": "is starting; try again in a moment",
}
"""For each pattern in a refusal's text, what the caller is told. A refused connection comes with a text but no error
code; if the text is not in English, no pattern matches, and the caller is told that the server cannot be reached."""


def _explain(error: Exception) -> str:
    match error:
        case errors.DiskFull():
            return "has no space left on its disk; free some, nothing was stored"
        case errors.ReadOnlySqlTransaction():
            return _READ_ONLY
        case errors.InsufficientPrivilege() | errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
            return _REFUSES
        case (
            UnicodeError() | errors.UntranslatableCharacter() | errors.CharacterNotInRepertoire() | psycopg.DataError()
        ):
            return "cannot store text that has a NUL or is not UTF-8; nothing was stored"
        case errors.ConnectionTimeout():
            return "does not answer; check that it runs and that no firewall is in between"
        case psycopg.OperationalError() | psycopg.InterfaceError():
            explanations = (text for pattern, text in _REFUSALS.items() if re.search(pattern, str(error)))
            return next(explanations, "cannot be reached or ended the connection; check that it runs")
        case _:
            return f"refused a statement ({type(error).__name__}); see its log"


def refuse_pooler(connection: Connection, url: str) -> None:
    """Raise `StoreError` if the connection goes through a pooler, which reports another process id than the server.
    Behind a pooler, a process may get the locks of another one, so that living processes seem dead."""
    if connection.execute("SELECT pg_backend_pid()").fetchone() != (connection.info.backend_pid,):
        raise StoreError(
            f"{name_server(url)} is a pooler of connections; name the server behind it too, as control_url of [store] "
            "or in PLANWARDEN_STORE_CONTROL"
        )


def migrate(connection: Connection, url: str) -> None:
    """Bring the schema to the newest version, one process at a time.

    Raises:
        StoreError: the database is too old or read-only, belongs to another application or a newer planwarden, was
            marked by `planwarden move`, or has an unfinished execution that does not replay. It is left unchanged.
    """
    version = connection.info.server_version // 10_000
    if version < OLDEST:
        raise StoreError(f"{name_server(url)} has version {version}; planwarden needs {OLDEST} or newer")
    if connection.execute("SHOW transaction_read_only").fetchone() == ("on",):
        raise StoreError(f"{name_server(url)} {_READ_ONLY}")
    steps = read_migrations()
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", (MIGRATION_LOCK,))
        table = connection.execute("SELECT to_regclass('schema_versions')").fetchone()
        if table == (None,):
            if connection.execute("SELECT to_regclass('executions')").fetchone() != (None,):
                raise StoreError(f"{name_server(url)} belongs to another application; it was left untouched")
            connection.execute("CREATE TABLE schema_versions (version integer PRIMARY KEY)")
        mark = read_mark(connection)
        if mark is not None:
            raise StoreError(mark.explain(name_server(url)))
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
        if 0 < current < len(steps):
            refuse_unreplayable(lambda name, parameters: run(connection, name, parameters).fetchall(), name_server(url))


REFUSED = "PWMOV"
"""The SQLSTATE with which the triggers refuse writes to a marked store."""
TRIGGER = "refuse_moved"
_FUNCTION = f"""
CREATE FUNCTION {TRIGGER}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '{REFUSED}', MESSAGE = (
        SELECT CASE WHEN is_source THEN 'was moved to ' ELSE 'is being filled from ' END || place FROM {MARK_TABLE}
    );
END $$"""


def read_mark(connection: Connection) -> MoveMark | None:
    """Return the mark that `planwarden move` left; None if there is none and the store can be used."""
    if connection.execute(f"SELECT to_regclass('{MARK_TABLE}')".encode()).fetchone() == (None,):
        return None
    row = connection.execute(f"SELECT move_id, is_source, place FROM {MARK_TABLE}".encode()).fetchone()
    return None if row is None else MoveMark(*row)


def write_mark(connection: Connection, mark: MoveMark, tables: Iterable[str]) -> None:
    """Mark an unmarked store in the open transaction. Once that is committed, nobody can write to `tables`.

    A process that lost its control connection may still have the store open without anybody noticing. The triggers that
    come with the mark refuse whatever such a process tries to write.
    """
    connection.execute(f"CREATE TABLE {MARK_TABLE} (move_id text, is_source boolean, place text)".encode())
    values = (mark.move_id, mark.is_source, mark.location)
    connection.execute(f"INSERT INTO {MARK_TABLE} VALUES ($1, $2, $3)".encode(), values)
    connection.execute("INSERT INTO schema_versions VALUES ($1)", (MARKED,))
    connection.execute(_FUNCTION.encode())
    for table in tables:
        connection.execute(
            f"CREATE TRIGGER {TRIGGER} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {TRIGGER}()".encode()
        )
