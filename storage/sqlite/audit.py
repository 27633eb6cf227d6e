"""The audit's rows in SQLite: added in the transaction of what they tell, read page by page."""

import sqlite3
from collections.abc import Iterable
from typing import Any

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.audit import GENESIS, AuditEntry, hash_row
from planwarden.storage.sqlite.statements import SQL


def add_entries(connection: sqlite3.Connection, entries: Iterable[AuditEntry], at: float, policy: str = "") -> None:
    """Append to the chain inside the caller's transaction; a policy that is not yet in it goes first."""
    found = connection.execute(SQL["last_audit"]).fetchone()
    sequence, before, known = (int(found[0]), bytes(found[1]), found[2]) if found is not None else (0, GENESIS, None)
    rows: list[tuple[Any, ...]] = []
    for entry in (*_policy_entries(known, policy), *entries):
        sequence += 1
        facts = canonical_json(entry.facts)
        before = hash_row(before, sequence, at, entry, facts)
        rows.append((sequence, at, entry.kind, entry.execution_id, entry.suspension_id, facts, before))
    connection.executemany(SQL["add_audit"], rows)


def _policy_entries(known: object, policy: str) -> Iterable[AuditEntry]:
    """The row that names the policy, unless the facts of the newest such row are `known` to be the same.

    A digest is its own text in JSON.
    """
    if policy and known != f'{{"digest":"{policy}"}}':
        yield AuditEntry(kind="policy", facts={"digest": policy})
