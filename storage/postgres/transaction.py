"""An open PostgreSQL transaction as the modules of `planwarden.storage.sql` use it."""

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.postgres.connection import Connection, run


class PostgresTransaction:
    """Implements `SqlTransaction`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, name: str, parameters: Sequence[object] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        return run(self._connection, name, parameters)

    def lock(self, name: str) -> None:
        self.execute("lock", (name,))

    def add_audit(self, entries: Iterable[AuditEntry], at: float) -> None:
        """The rows get their places in the chain when they are sealed."""
        for entry in entries:
            facts = canonical_json(entry.facts)
            self.execute("add_unsealed", (at, entry.kind, entry.execution_id, entry.suspension_id, facts, ""))
