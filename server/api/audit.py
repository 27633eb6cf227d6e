"""Reads the audit and proves that it is whole.

Verification recomputes the hash chain from the first row, checks that no number is missing, verifies the signatures of
people's keys, and compares the decisions with the logs of the executions that are still stored, in both directions.
A person who can write the file can also rewrite the chain from a changed row to the end; only a head that was kept
elsewhere (`audit export`) reveals that.
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
    """One row of the audit for people and programs."""

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
    """The result of a verification."""

    rows: int
    head: str
    """`SEQUENCE:HASH` of the last row; keep it elsewhere."""
    problems: tuple[str, ...]
    """What is wrong, by row; at most 100 messages."""
    signatures: int = 0
    """Signatures by people's keys that were verified."""
    unverified: int = 0
    """Signatures that could not be verified, because the extra is not installed."""

    @property
    def is_whole(self) -> bool:
        return not self.problems


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
        """Returns rows, oldest first: of one execution, of the stored executions of a thread, or of the whole audit."""
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
        found = [
            row for name in ids for row in await self._store.audit_rows(after=after, execution_id=name, limit=limit + 1)
        ]
        found.sort(key=lambda row: row.sequence)
        following = str(found[limit - 1].sequence) if len(found) > limit else None
        return AuditPage(rows=tuple(map(build_audit_line, found[:limit])), next_cursor=following)

    async def read_rows(self) -> AsyncGenerator[AuditRow]:
        """Yields every row, oldest first."""
        after = 0
        while page := await self._store.audit_rows(after=after, limit=PAGE):
            for row in page:
                yield row
            after = page[-1].sequence

    async def verify(self, head: str | None = None) -> AuditVerdict:
        """Verifies the audit; `head` is the head that an earlier verification or export printed."""
        kept = _parse_head(head)
        problems: list[str] = []
        expected, before, count, last = 1, GENESIS, 0, 0
        known = set[str]()
        # Only verification needs this import.
        from planwarden.server.signatures.audit import SignatureCheck

        signatures, stored_keys = SignatureCheck(), await self._stored_keys()
        async for row in self.read_rows():
            problems.extend(_find_faults(row, expected, before))
            problems.extend(signatures.check_row(row))
            if kept is not None and row.sequence == kept[0] and row.hash.hex() != kept[1]:
                problems.append(f"row {row.sequence} is not the one of the head that was kept")
            if row.entry.execution_id is not None:
                known.add(row.entry.execution_id)
            expected, before, last, count = row.sequence + 1, row.hash, row.sequence, count + 1
        end = max(await self._store.audit_end(), kept[0] if kept is not None else 0)
        if end > last:
            problems.append(f"rows {last + 1} to {end} are missing at the end")
        # Keys may change while the rows are read; a difference that both looks find is a manipulation.
        after = frozenset(signatures.compare_keys(await self._stored_keys()))
        problems.extend(found for found in signatures.compare_keys(stored_keys) if found in after)
        for execution_id in sorted(known):
            problems.extend(await self._compare(execution_id))
        return AuditVerdict(
            rows=count,
            head=f"{last}:{before.hex()}",
            problems=tuple(problems[:MAX_PROBLEMS]),
            signatures=signatures.verified,
            unverified=signatures.unverified,
        )

    async def _stored_keys(self) -> tuple[SigningKey, ...]:
        return await self._store.signing_keys.keys() if isinstance(self._store, HasKeys) else ()

    async def _compare(self, execution_id: str) -> list[str]:
        """Returns a problem if log and audit of an execution differ; none for an execution that was pruned."""
        for _ in range(ATTEMPTS):
            try:
                logged = await self._read_logged(execution_id)
            except PlanwardenError as error:
                return [f"execution {execution_id!r} cannot be compared: {error.message}"]
            if logged is None or logged == await self._read_audited(execution_id):
                return []
            # The execution may have continued between the two reads; a lasting difference is a manipulation.
        return [f"execution {execution_id!r}: its log and the audit do not hold the same questions and decisions"]

    async def _read_logged(self, execution_id: str) -> list[Comparable] | None:
        """Returns what the log says; None when the execution was pruned."""
        header = await self._store.header(execution_id)
        if header is None:
            return None
        found: list[Comparable] = []
        execution = new_execution(execution_id, header.thread_id, header.principal)
        for item in await self._store.read(execution_id):
            execution = apply(execution, item.event, item.at)
            found.extend(_to_comparable(entry) for entry in audited((item,), execution, ""))
        return found

    async def _read_audited(self, execution_id: str) -> list[Comparable]:
        """Returns what the audit says about the same execution."""
        found: list[Comparable] = []
        after = 0
        while page := await self._store.audit_rows(after=after, execution_id=execution_id, limit=PAGE):
            found.extend(_to_comparable(row.entry) for row in page if row.entry.kind in _FROM_LOGS)
            after = page[-1].sequence
        return found


_FROM_LOGS = frozenset(
    {"asked", "revised", "endorsed", "decided", "timed_out", "withdrawn", "reminded", "escalated", "granted"}
)


def _to_comparable(entry: AuditEntry) -> Comparable:
    facts = tuple(sorted((key, repr(value)) for key, value in entry.facts.items() if key != "policy"))
    return entry.kind, entry.suspension_id, facts


def _find_faults(row: AuditRow, expected: int, before: bytes) -> Iterator[str]:
    if row.sequence != expected:
        missing = f"row {expected} is" if row.sequence == expected + 1 else f"rows {expected} to {row.sequence - 1} are"
        yield f"{missing} missing"
        return
    if hash_row(before, row.sequence, row.at, row.entry) != row.hash:
        yield f"row {row.sequence} is not what was written, or not where it was written"


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
    return AuditLine(
        sequence=row.sequence,
        at=datetime.fromtimestamp(row.at, UTC),
        kind=row.entry.kind,
        execution_id=row.entry.execution_id,
        suspension_id=row.entry.suspension_id,
        facts=row.entry.facts,
        hash=row.hash.hex(),
    )
