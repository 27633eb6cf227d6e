"""Rows of the audit, read as they are stored."""

from typing import Any

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.audit import AuditEntry, AuditRow
from planwarden.storage.sql.rows import read_object


def read_row(row: tuple[Any, ...]) -> AuditRow:
    """A row as stored; what is wrong with its content is found by its hash, not here."""
    sequence, at, kind, execution_id, suspension_id, text, hash_ = row
    try:
        entry = AuditEntry(kind=kind, facts=read_object(text), execution_id=execution_id, suspension_id=suspension_id)
        return AuditRow(sequence=sequence, at=float(at), entry=entry, hash=bytes(hash_))
    except (ValueError, TypeError) as error:
        raise StoreError(f"row {sequence} of the audit is damaged: {error}; restore a backup") from error
