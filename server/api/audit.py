"""Reads the audit, for people and programs; `planwarden.server.api.verification` proves that it is whole."""

from collections.abc import AsyncGenerator
from datetime import datetime

import msgspec

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution.audit import AuditRow
from planwarden.agent.ports.store import Store
from planwarden.server.api.verification import PAGE, AuditVerdict, Verification, read_rows
from planwarden.server.views.instants import to_utc


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the audit for people and programs."""

    sequence: int
    at: datetime
    kind: str
    execution_id: str | None
    suspension_id: str | None
    facts: dict[str, JsonValue]
    hash: str


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    rows: tuple[AuditLine, ...]
    next_cursor: str | None


class AuditReader:
    """The audit of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_page(
        self,
        *,
        execution_id: str | None = None,
        thread_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> AuditPage:
        """Return rows, oldest first: of one execution, of the stored executions of a thread, or of the whole audit."""
        if not 1 <= limit <= PAGE:
            raise InvalidArguments(f"'limit' must be between 1 and {PAGE}")
        after = 0 if cursor is None else int(cursor) if cursor.isascii() and cursor.isdigit() else -1
        if after < 0:
            raise InvalidArguments(
                f"cursor {(cursor or '')[:64]!r} does not come from this audit; start without a cursor"
            )
        ids = [execution_id]
        if thread_id is not None:
            ids = [header.execution_id for header in await self._store.thread(thread_id)]
        rows = [
            row for name in ids for row in await self._store.audit_rows(after=after, execution_id=name, limit=limit + 1)
        ]
        rows.sort(key=lambda row: row.sequence)
        following = str(rows[limit - 1].sequence) if len(rows) > limit else None
        return AuditPage(rows=tuple(map(build_audit_line, rows[:limit])), next_cursor=following)

    def read_rows(self) -> AsyncGenerator[AuditRow]:
        """Yield every row, oldest first."""
        return read_rows(self._store)

    async def verify(self, head: str | None = None) -> AuditVerdict:
        """Verify the audit; `head` is the head that an earlier verification or export printed."""
        old_head = _parse_head(head)
        return await Verification(self._store, old_head).run()


def _parse_head(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    number, _, hash_ = text.strip().partition(":")
    if not (number.isascii() and number.isdigit() and len(hash_) == 64):
        raise InvalidArguments(
            f"{text[:100]!r} is not a head; it looks like 12:5f0c…, as `planwarden audit verify` prints it"
        )
    return int(number), hash_.lower()


def build_audit_line(row: AuditRow) -> AuditLine:
    return copy_fields(AuditLine, row.entry, sequence=row.sequence, at=to_utc(row.at), hash=row.hash.hex())
