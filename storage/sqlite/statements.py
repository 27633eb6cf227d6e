"""The SQL of SQLite, by name, and a transaction that runs it."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.storage.sql.rows import chain_audit
from planwarden.storage.sql.statements import load_migrations, load_statements

DIALECT = (
    (r"\$(\d+)", r"?\1"),
    (r"::\w+", ""),
    (r' COLLATE "C"', ""),
    # Nobody else writes while a transaction writes.
    (r"\s+FOR UPDATE( SKIP LOCKED)?", ""),
    (r"OVERRIDING SYSTEM VALUE ", ""),
    (r"\bnext_number\(\)", "(SELECT coalesce(max(number), 0) + 1 FROM executions)"),
    (r"\bclock\((\?\d+)\)", r"\1"),
    (r"\bjson_array_elements_text\((\?\d+)\)", r"value FROM json_each(\1)"),
    # `min` of several values is NULL where one of them is.
    (r"\bleast\(([\w.]+), ([\w.]+)\)", r"min(coalesce(\1, \2), coalesce(\2, \1))"),
    (r"\bgreatest\(", "max("),
    (r"\bstrpos\(", "instr("),
    (r"\bchr\(", "char("),
    (r"\bbigint GENERATED ALWAYS AS IDENTITY\b|\bbigint\b|\bboolean\b", "INTEGER"),
    (r"\bdouble precision\b", "REAL"),
    (r"\bbytea\b", "BLOB"),
    (r"^\);$", ") STRICT;"),
)
SQL: dict[str, str] = load_statements(Path(__file__).parent, DIALECT)


def read_migrations() -> list[str]:
    """Return the scripts that bring a file from one schema to the next, oldest first."""
    return load_migrations(Path(__file__).parent, DIALECT)


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
