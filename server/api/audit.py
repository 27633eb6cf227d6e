"""Reading the audit and proving that it is whole.

Verification computes the chain again from the first row, checks that no number is missing, verifies the signatures of
people's keys, and compares the decisions with those in the logs of the executions that are still stored, both ways. Whoever can write the file can also write a
new chain from the changed row to the end; only a head that was kept elsewhere (`audit export`) proves otherwise.
"""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, PlanwardenError
from planwarden.agent.core.audit import GENESIS, AuditEntry, AuditRow, hash_row
from planwarden.agent.core.audit import build_audit_entries as audited
from planwarden.agent.core.fold import apply
from planwarden.agent.core.state import new_execution
from planwarden.agent.ports.store import Store
from planwarden.storage.ports.keys import HasKeys, SigningKey

PAGE = 500
MAX_PROBLEMS = 100
ATTEMPTS = 3

Comparable = tuple[str, str | None, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One row as people and programs see it."""

    sequence: int
    at: datetime
    kind: str
    execution_id: str | None
    suspension_id: str | None
    facts: dict[str, JsonValue]
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    rows: tuple[AuditLine, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """What verification found."""

    rows: int
    head: str
    """`SEQUENCE:HASH` of the last row, to be kept elsewhere."""
    problems: tuple[str, ...]
    """Each names a row by its number; at most 100."""
    signatures: int = 0
    """Signatures by people's keys that were verified again."""
    unverified: int = 0
    """Signatures that were not, because the extra is not installed."""

    @property
    def is_whole(self) -> bool:
        return not self.problems


class AuditReader:
    """The audit of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(
        self,
        *,
        execution_id: str | None = None,
        thread_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> AuditPage:
        """Rows oldest first, of one execution, of all executions of a thread that are still stored, or of all."""
        if not 1 <= limit <= PAGE:
            raise InvalidArguments(f"'limit' must be between 1 and {PAGE}")
        after = 0 if cursor is None else int(cursor) if cursor.isascii() and cursor.isdigit() else -1
        if after < 0:
            raise InvalidArguments(f"cursor {(cursor or '')[:64]!r} is not one that was given out")
        ids = [execution_id]
        if thread_id is not None:
            ids = [header.execution_id for header in await self._store.thread(thread_id)]
        found = [
            row for name in ids for row in await self._store.audit_rows(after=after, execution_id=name, limit=limit + 1)
        ]
        found.sort(key=lambda row: row.sequence)
        following = str(found[limit - 1].sequence) if len(found) > limit else None
        return AuditPage(rows=tuple(map(line, found[:limit])), next_cursor=following)

    async def rows(self) -> AsyncGenerator[AuditRow]:
        """Every row, oldest first."""
        after = 0
        while page := await self._store.audit_rows(after=after, limit=PAGE):
            for row in page:
                yield row
            after = page[-1].sequence

    async def verify(self, head: str | None = None) -> AuditVerdict:
        """Whether the audit is whole; `head` is one that was kept from an earlier verification or export."""
        kept = _head(head)
        problems: list[str] = []
        expected, before, count, last = 1, GENESIS, 0, 0
        known = set[str]()
        # Imported here, because only whoever verifies needs it.
        from planwarden.server.signatures.audit import SignatureCheck

        signatures, stored_keys = SignatureCheck(), await self._stored_keys()
        async for row in self.rows():
            problems.extend(_faults(row, expected, before))
            problems.extend(signatures.check_row(row))
            if kept is not None and row.sequence == kept[0] and row.hash.hex() != kept[1]:
                problems.append(f"row {row.sequence} is not the one of the head that was kept")
            if row.entry.execution_id is not None:
                known.add(row.entry.execution_id)
            expected, before, last, count = row.sequence + 1, row.hash, row.sequence, count + 1
        end = max(await self._store.audit_end(), kept[0] if kept is not None else 0)
        if end > last:
            problems.append(f"rows {last + 1} to {end} are missing at the end")
        # Keys may change while the rows are read; what is different both times was changed by somebody else.
        after = frozenset(signatures.compare_keys(await self._stored_keys()))
        problems.extend(found for found in signatures.compare_keys(stored_keys) if found in after)
        for execution_id in sorted(known):
            problems.extend(await self._compared(execution_id))
        return AuditVerdict(
            rows=count,
            head=f"{last}:{before.hex()}",
            problems=tuple(problems[:MAX_PROBLEMS]),
            signatures=signatures.verified,
            unverified=signatures.unverified,
        )

    async def _stored_keys(self) -> tuple[SigningKey, ...]:
        return await self._store.signing_keys.keys() if isinstance(self._store, HasKeys) else ()

    async def _compared(self, execution_id: str) -> list[str]:
        """What the log of an execution says otherwise; nothing when it was pruned."""
        for _ in range(ATTEMPTS):
            try:
                told = await self._told(execution_id)
            except PlanwardenError as error:
                return [f"execution {execution_id!r} cannot be compared: {error.message}"]
            if told is None or told == await self._kept(execution_id):
                return []
            # It may have gone on between the two reads; what is different for ever was changed.
        return [f"execution {execution_id!r}: its log and the audit do not tell the same questions and decisions"]

    async def _told(self, execution_id: str) -> list[Comparable] | None:
        """What the log says, or None when there is none any more."""
        header = await self._store.header(execution_id)
        if header is None:
            return None
        found: list[Comparable] = []
        execution = new_execution(execution_id, header.thread_id, header.principal)
        for item in await self._store.read(execution_id):
            execution = apply(execution, item.event, item.at)
            found.extend(_comparable(entry) for entry in audited((item,), execution, ""))
        return found

    async def _kept(self, execution_id: str) -> list[Comparable]:
        """What the audit says about the same."""
        found: list[Comparable] = []
        after = 0
        while page := await self._store.audit_rows(after=after, execution_id=execution_id, limit=PAGE):
            found.extend(_comparable(row.entry) for row in page if row.entry.kind in _FROM_LOGS)
            after = page[-1].sequence
        return found


_FROM_LOGS = frozenset(
    {"asked", "revised", "endorsed", "decided", "timed_out", "withdrawn", "reminded", "escalated", "granted"}
)


def _comparable(entry: AuditEntry) -> Comparable:
    facts = tuple(sorted((key, repr(value)) for key, value in entry.facts.items() if key != "policy"))
    return entry.kind, entry.suspension_id, facts


def _faults(row: AuditRow, expected: int, before: bytes) -> Iterator[str]:
    if row.sequence != expected:
        missing = f"row {expected} is" if row.sequence == expected + 1 else f"rows {expected} to {row.sequence - 1} are"
        yield f"{missing} missing"
        return
    if hash_row(before, row.sequence, row.at, row.entry) != row.hash:
        yield f"row {row.sequence} is not what was written, or not where it was written"


def _head(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    number, _, hash_ = text.strip().partition(":")
    if not (number.isascii() and number.isdigit() and len(hash_) == 64):
        raise InvalidArguments(
            f"{text[:100]!r} is not a head; it looks like 12:5f0c…, as `planwarden audit verify` prints it"
        )
    return int(number), hash_.lower()


def line(row: AuditRow) -> AuditLine:
    """A row for people and programs."""
    return AuditLine(
        sequence=row.sequence,
        at=datetime.fromtimestamp(row.at, UTC),
        kind=row.entry.kind,
        execution_id=row.entry.execution_id,
        suspension_id=row.entry.suspension_id,
        facts=row.entry.facts,
        hash=row.hash.hex(),
    )
