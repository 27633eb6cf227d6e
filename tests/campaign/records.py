"""What planwarden has stored, read from the file by somebody who never writes to it."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planwarden.agent.core.fold import fold
from planwarden.agent.core.state import FINISHED, ExecutionState, new_execution
from planwarden.agent.ports.store import Header
from planwarden.storage.sql.rows import read_header, read_log
from planwarden.storage.sqlite.statements import SQL


@dataclass(frozen=True)
class Pending:
    """An open question to a person."""

    suspension_id: str
    execution_id: str
    thread_id: str


class Records:
    def __init__(self, home: Path) -> None:
        self._path = home / "planwarden.db"

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, isolation_level=None)
        try:
            connection.execute("PRAGMA busy_timeout = 5000")
            yield connection
        finally:
            connection.close()

    def pending(self) -> list[Pending]:
        """Open questions to people; none while the file cannot be read."""
        with suppress(sqlite3.OperationalError), self._connected() as connection:
            rows = connection.execute(SQL["pending_suspensions"], (0, None, None, "human", 1000)).fetchall()
            return [Pending(row[0], row[1], row[2]) for row in rows]
        return []

    def headers(self) -> list[Header]:
        with self._connected() as connection:
            return [read_header(row) for row in connection.execute(SQL["executions"], (100_000,))]

    def unfinished(self) -> list[Header]:
        """Executions that have not ended; one that cannot be read now counts as unfinished."""
        return [header for header in self.headers() if header.status not in FINISHED]

    def state(self, header: Header | Pending) -> ExecutionState:
        with self._connected() as connection:
            rows: list[Any] = connection.execute(SQL["read_events"], (header.execution_id, 1)).fetchall()
        state = new_execution(header.execution_id, header.thread_id, "")
        return fold(state, read_log(header.execution_id, 0, rows))

    def events(self, execution_id: str) -> list[Any]:
        """The whole log of an execution."""
        with self._connected() as connection:
            rows: list[Any] = connection.execute(SQL["read_events"], (execution_id, 1)).fetchall()
        return list(read_log(execution_id, 0, rows))
