"""The tables of a store; what a move copies, what it leaves behind, and what it needs from each of its two stores.

Both databases have these tables. A column moves if both databases have it and `OWNED` does not name it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution.audit import GENESIS
from planwarden.storage.location import MoveMark
from planwarden.storage.sql.records import LOCAL_KINDS

Value = int | float | str | bytes | None
Row = tuple[Value, ...]

TABLES = {
    "executions": "executions",
    "synopses": "synopses",
    "starts": "start keys",
    "events": "transactions of logs",
    "artifacts": "large results",
    "suspensions": "questions",
    "audit": "rows of the audit",
    "grants": "grants",
    "once_keys": "business keys",
    "budget_shares": "shares of budgets",
    "notifications": "notifications",
    "records": "tokens and other records",
}
"""The tables, and what their rows are called, in the plural. `owners` does not move: no process runs during a move."""
PARTS = {"records": f"(SELECT * FROM records WHERE kind NOT IN {LOCAL_KINDS} ORDER BY number) AS records"}
"""The part of a table that moves, if not all of it does. Rows about running processes stay behind, as do secrets, which
with SQLite are files. So open forms are shown again, and people must log in and set the passphrase again."""
MERGED = ("audit_unsealed", "audit_state")
"""Tables of PostgreSQL only: for rows that go into `audit` later, and for the audit's highest number."""
OWNED = ("executions.owner", "executions.leased_until", "records.number")
"""Columns that do not move. Executions arrive without an owner, and their fences move, so that no earlier lease counts
again. Records get new numbers, in the same order, because the target may have records of its own."""
FIXED: dict[str, Value] = {"executions.leased_until": 0.0}
"""Values for columns of the target that have no default, if nothing moves into them."""


class StoreSide(ABC):
    """A store that nobody else uses while it is open here.

    `commit` ends one transaction and begins the next; closing undoes what was not committed. Every method raises
    `StoreError` when the medium fails.
    """

    name: str
    """The store as messages name it."""
    location: str
    """The store as a URL without a password."""
    statements: Mapping[str, str]

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows, if it has any."""

    def count(self, table: str) -> int:
        """Return the number of rows of the table that move."""
        return int(self.execute(f"SELECT count(*) FROM {PARTS.get(table, table)}")[0][0])

    def read_audit_end(self) -> tuple[int, str]:
        """Return the highest number that a row of the audit ever had, and the head that `audit verify` prints."""
        [(number,)] = self.execute(self.statements["audit_end"])
        [(sequence, hash_, *_)] = self.execute(self.statements["last_audit"]) or [(0, GENESIS)]
        return int(number), f"{sequence}:{bytes(hash_).hex()}"

    def describe_use(self) -> StoreError:
        """Return the error for a store that another process uses."""
        return StoreError(
            f"another process has {self.name} open; end every planwarden process that uses it, then run move again; "
            "nothing was moved"
        )

    @abstractmethod
    def write_audit_end(self, number: int) -> None: ...

    @abstractmethod
    def read_mark(self) -> MoveMark | None: ...

    @abstractmethod
    def write_mark(self, mark: MoveMark) -> None:
        """Mark the store: no process can open it any more, and one that has it open can no longer write to it."""

    @abstractmethod
    def clear_mark(self) -> None:
        """Remove the mark; the store gets back the version that it had."""

    @abstractmethod
    def columns(self, table: str) -> Sequence[str]: ...

    @abstractmethod
    def read(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the rows that move, one at a time, so that memory never holds all of them; flags are 0 or 1."""

    @abstractmethod
    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Store rows as `read` yields them, one at a time."""

    @abstractmethod
    def clear(self) -> None:
        """Delete every row that a move may have written."""

    @abstractmethod
    def commit(self) -> None:
        """Commit, and return when everything that was done is on the disk."""
