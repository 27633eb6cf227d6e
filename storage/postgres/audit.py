"""The seal of the audit: rows that transactions wrote get their numbers and their hashes.

A chain in each transaction would make all commits of all processes wait in a row. The price: the rows of the last half
second are not tamper-evident yet.
"""

from typing import Any

from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.storage.postgres.connection import Connection, run
from planwarden.storage.sql.rows import chain_audit, read_object

MOST = 5_000
"""Rows that one transaction seals."""


def seal(connection: Connection) -> None:
    """Seal everything that was committed before the call. Of processes that do so at once, one seals each row."""
    while run(connection, "is_unsealed").fetchone() is not None:
        with connection.transaction():
            if _seal_some(connection) < MOST:
                return


def _seal_some(connection: Connection) -> int:
    # Read after the lock, so that the end of the chain is what the last one who sealed made it.
    run(connection, "lock_audit")
    waiting = run(connection, "unsealed", (MOST,)).fetchall()
    if not waiting:
        return 0
    rows = chain_audit(run(connection, "last_audit").fetchone(), map(_read_unsealed, waiting))
    run(connection, "add_audit", [list(column) for column in zip(*rows, strict=True)])
    run(connection, "end_audit", (rows[-1][0],))
    run(connection, "forget_unsealed", ([row[0] for row in waiting],))
    return len(waiting)


def _read_unsealed(row: tuple[Any, ...]) -> tuple[float, AuditEntry, str]:
    _, at, kind, execution_id, suspension_id, facts, policy = row
    entry = AuditEntry(kind=kind, facts=read_object(facts), execution_id=execution_id, suspension_id=suspension_id)
    return at, entry, policy
