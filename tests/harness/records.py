"""What planwarden has stored, read from the store by somebody who never writes to it."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planwarden.agent.core.fold import fold
from planwarden.agent.core.state import FINISHED, ExecutionState, new_execution
from planwarden.agent.ports.store import Header
from planwarden.storage.sql.rows import read_header, read_log
from planwarden.storage.sqlite.statements import SQL

Fetch = Callable[[str, Sequence[object]], list[Any]]
"""Takes the name of one of planwarden's own statements and its parameters, returns rows; raises `Unreadable`."""


class Unreadable(OSError):
    """The store cannot be read now."""


@dataclass(frozen=True)
class Pending:
    """An open question to a person."""

    suspension_id: str
    execution_id: str
    thread_id: str


def read_file(path: Path) -> Fetch:
    """Reads a file of SQLite."""

    def fetch(name: str, parameters: Sequence[object]) -> list[Any]:
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)) as connection:
                connection.execute("PRAGMA busy_timeout = 5000")
                return connection.execute(SQL[name], tuple(parameters)).fetchall()
        except sqlite3.OperationalError as error:
            raise Unreadable(str(error)) from error

    return fetch


class Records:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def pending(self) -> list[Pending]:
        """Open questions to people; none while the store cannot be read."""
        with suppress(Unreadable):
            rows = self._fetch("pending_suspensions", (0, None, None, "human", 1000))
            return [Pending(row[0], row[1], row[2]) for row in rows]
        return []

    def headers(self) -> list[Header]:
        return [read_header(row) for row in self._fetch("executions", (100_000,))]

    def unfinished(self) -> list[Header]:
        """Executions that have not ended; one that cannot be read now counts as unfinished."""
        return [header for header in self.headers() if header.status not in FINISHED]

    def state(self, header: Header | Pending) -> ExecutionState:
        state = new_execution(header.execution_id, header.thread_id, "")
        return fold(state, self._read_log(header.execution_id))

    def _read_log(self, execution_id: str) -> tuple[Any, ...]:
        return read_log(execution_id, 0, self._fetch("read_events", (execution_id, 1)))
