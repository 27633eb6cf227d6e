"""What planwarden has stored, read by somebody who never writes to it, and what people outside were told."""

import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.fold import fold
from planwarden.agent.core.execution.state import FINISHED, ExecutionState, new_execution
from planwarden.agent.ports.store import Header
from planwarden.storage.sql.rows import read_header, read_log
from planwarden.storage.sqlite.database import SQL

Fetch = Callable[[str, Sequence[object]], list[Any]]
"""Takes the name of one of planwarden's own statements and its parameters, returns rows; raises `Unreadable`."""


class Unreadable(OSError):
    """The store cannot be read now."""


@dataclass(frozen=True)
class Pending:
    suspension_id: str
    execution_id: str
    thread_id: str


def read_file(path: Path) -> Fetch:
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


Consent = tuple[str, str, str, str]
"""Execution, step, tool, and the arguments as canonical JSON."""


@dataclass(frozen=True)
class Verdict:
    suspension_id: str
    approved: bool
    channel: str


@dataclass
class Testimony:
    started: list[str] = field(default_factory=list[str])
    """Executions whose start was acknowledged."""
    keys: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """The executions that were acknowledged for each idempotency key."""
    granted: int = 0
    """Calls that a person allowed beforehand, noted before the grant was made."""
    cancelled: list[str] = field(default_factory=list[str])
    """Executions that were said to be over, or about to be, because somebody cancelled them."""
    consents: set[Consent] = field(default_factory=set[Consent])
    """Everything that a person agreed to, noted before the agreement was sent."""
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    surrendered: dict[str, float] = field(default_factory=dict[str, float])
    """Calls that had not happened when a person gave them up, and when that was acknowledged."""
    reconciled: int = 0
    """Acknowledged answers about calls whose outcome nobody knew."""
    troubles: deque[str] = field(default_factory=lambda: deque[str](maxlen=8))
    """Why the last attempts that failed did."""

    def agree(self, execution_id: str, question: ev.Question) -> None:
        """A person is about to approve what this revision of the question shows."""
        if question.tool_name is not None and question.kind == "approval":
            self._note(execution_id, question.step_id, question.tool_name, question.arguments)
        for covered in question.covers:
            self._note(execution_id, covered.step_id, covered.tool_name, covered.arguments)

    def _note(self, execution_id: str, step_id: str | None, tool: str, arguments: Mapping[str, Any] | None) -> None:
        self.consents.add((execution_id, step_id or "", tool, canonical_json(dict(arguments or {}))))

    def acknowledge(self, suspension_id: str, approved: bool, channel: str) -> None:
        self.verdicts.append(Verdict(suspension_id, approved, channel))

    def surrender(self, key: str) -> None:
        self.surrendered[key] = time.monotonic()
