"""A transaction of the SQLite file, as the modules of `planwarden.storage.sql` use it."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.storage.sql.rows import chain_audit
from planwarden.storage.sqlite.statements import SQL


class SqliteTransaction:
    """Implements `SqlTransaction` over a connection with an open one."""

    __slots__ = ("connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def execute(self, name: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        return self.connection.execute(SQL[name], parameters)

    def lock(self, name: str) -> None:
        """Nobody else writes while this transaction is open."""

    def add_audit(self, entries: Iterable[AuditEntry], at: float, policy: str = "") -> None:
        """Append to the chain; a policy that is not yet in it goes first."""
        last = self.execute("last_audit").fetchone()
        self.connection.executemany(SQL["add_audit"], chain_audit(last, ((at, entry, policy) for entry in entries)))


Result = TypeVar("Result")
Operation = Callable[[SqliteTransaction], Result]
