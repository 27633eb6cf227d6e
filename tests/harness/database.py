"""A PostgreSQL of a lane's own that the processes of a stage share, how it is hurt, and who took whose executions."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from planwarden.storage.postgres.connection import connect, run
from planwarden.storage.postgres.store import PostgresStore
from tests.harness.records import Unreadable
from tests.support.postgres import Server, as_url

NAME = "planwarden {pid}"
"""What the connections of a process of the campaign call themselves."""
WATCH = """
CREATE TABLE takes (execution_id text, previous text, owner text, taker text, at double precision);
CREATE FUNCTION note_take() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO takes VALUES (old.execution_id, old.owner, new.owner, current_setting('application_name'),
                              extract(epoch FROM clock_timestamp()));
    RETURN NULL;
END $$;
CREATE TRIGGER taken AFTER UPDATE OF owner ON executions FOR EACH ROW
WHEN (old.status = 'running' AND new.status = 'running'
      AND old.owner IS NOT NULL AND old.owner IS DISTINCT FROM new.owner)
EXECUTE FUNCTION note_take();
"""
FORGOTTEN: dict[str, tuple[str, str]] = {
    "shared-no-fence": (
        "held.owner IS DISTINCT FROM a->>'lease_owner' OR held.fence <> (a->>'lease_fence')::bigint",
        "false",
    ),
    "shared-no-count": (">= (wanted->>1)::bigint", "IS NOT NULL"),
}
"""A condition in the database's own function `append_one`, and what is there with the planted bug."""


@dataclass(frozen=True)
class Take:
    """An execution that ran lost its owner."""

    execution_id: str
    previous: str
    taker: int
    """The process that did it."""
    at: float
    """By the clock that never jumps."""


class SharedDatabase:
    """One empty database, with planwarden's schema and a trigger that notes who takes executions from whom."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._database = server.make_database()
        self.url = as_url(self._database)

    async def prepare(self, plant: str | None = None) -> None:
        """Like the operator's first start; with a planted bug the database forgets to refuse something."""
        await PostgresStore.open(self.url).close()
        with connect(self.url) as connection:
            connection.execute(WATCH.encode())
            if plant in FORGOTTEN:
                row = connection.execute("SELECT pg_get_functiondef('append_one'::regproc)").fetchone()
                assert row is not None and FORGOTTEN[plant][0] in row[0]
                connection.execute(row[0].replace(*FORGOTTEN[plant]).encode())

    def fetch(self, name: str, parameters: Sequence[object]) -> list[Any]:
        """As `records.Fetch`."""
        try:
            with connect(self.url) as connection:
                return run(connection, name, parameters).fetchall()
        except psycopg.OperationalError as error:
            raise Unreadable(str(error)) from error

    def list_takes(self) -> list[Take]:
        """Oldest first."""
        since = time.time() - time.monotonic()
        with connect(self.url) as connection:
            rows = connection.execute("SELECT execution_id, previous, taker, at FROM takes ORDER BY at").fetchall()
        return [Take(row[0], row[1], int(row[2].rpartition(" ")[2]), row[3] - since) for row in rows]

    def cut(self, pid: int, *, only_control: bool) -> None:
        """The server ends the connections of a process, or only the one that holds its sign of life."""
        text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"
        if only_control:
            text += " AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')"
        with suppress(psycopg.Error), connect(self.url) as connection:
            connection.execute(text.encode(), (NAME.format(pid=pid),))

    def restart(self, mode: str) -> None:
        """`fast` or `immediate`; the second one as after a crash."""
        self._server.stop(mode)
        self._server.start()

    def close(self, kept: Path | None) -> None:
        """Deletes it, perhaps after its tables were copied into a folder."""
        if kept is not None:
            with suppress(psycopg.Error), connect(self.url) as connection:
                for table in ("executions", "events", "suspensions", "owners", "takes"):
                    rows = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
                    (kept / table).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        with suppress(psycopg.Error):
            self._server.drop_database(self._database)
