"""The seal of the audit: rows that transactions wrote get their numbers and their hashes.

A chain in each transaction would make all commits of all processes wait in a row. The price: the rows of the last half
second are not tamper-evident yet.
"""

from collections.abc import Iterator
from typing import Any

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.execution.audit import GENESIS, AuditEntry, hash_row
from planwarden.storage.postgres.connection import Connection, run
from planwarden.storage.sql.rows import read_object

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
    last = run(connection, "last_audit").fetchone()
    sequence, before, last_policy = (int(last[0]), bytes(last[1]), last[2]) if last is not None else (0, GENESIS, None)
    rows: list[tuple[Any, ...]] = []
    for at, entry in _entries(waiting, last_policy):
        sequence += 1
        facts = canonical_json(entry.facts)
        before = hash_row(before, sequence, at, entry, facts)
        rows.append((sequence, at, entry.kind, entry.execution_id, entry.suspension_id, facts, before))
    run(connection, "add_audit", [list(column) for column in zip(*rows, strict=True)])
    run(connection, "end_audit", (sequence,))
    run(connection, "forget_unsealed", ([row[0] for row in waiting],))
    return len(waiting)


def _entries(waiting: list[tuple[Any, ...]], last_policy: str | None) -> Iterator[tuple[float, AuditEntry]]:
    """Yield the rows, and before each row with a new policy a row that names the policy."""
    for _, at, kind, execution_id, suspension_id, facts, policy in waiting:
        if policy:
            policy_facts = canonical_json({"digest": policy})
            if policy_facts != last_policy:
                last_policy = policy_facts
                yield at, AuditEntry(kind="policy", facts={"digest": policy})
        yield (
            at,
            AuditEntry(kind=kind, facts=read_object(facts), execution_id=execution_id, suspension_id=suspension_id),
        )
