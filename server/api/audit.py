"""Reads the audit for people and programs, and verifies its chain, its signatures and its agreement with the store.

The rows of the audit are read once, in order, and only a digest of each execution's rows is kept. Then every stored
execution is read, one at a time. Its log must agree with the digests in the log, and with the rows in the store and in
the audit. If the store no longer has an execution of the audit, a row must say that `planwarden prune` deleted it.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from datetime import datetime
from functools import reduce
from typing import get_args

import msgspec

from planwarden.agent.approval.evidence import gather_evidence
from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution.audit import GENESIS, POLICY_CHARS, AuditEntry, AuditRow, LogKind, hash_row
from planwarden.agent.core.execution.state import new_execution
from planwarden.agent.ports.budgets_and_keys import Grant, day_of
from planwarden.agent.ports.store import Header, Store
from planwarden.server.api.grants import describe_grant
from planwarden.server.api.limits import check_limit
from planwarden.server.signatures.audit import SignatureCheck
from planwarden.server.views.instants import to_utc
from planwarden.storage.keys import KeyStore, SigningKey
from planwarden.storage.sql.records import HasRecords

PAGE = 500
MAX_PROBLEMS = 100
MAX_GRANTS = 1_000_000
ATTEMPTS = 10
"""The most attempts to compare an execution with the audit while other processes continue the execution."""
NEAR_MIDNIGHT_S = 600
LOG_KINDS: frozenset[str] = frozenset(get_args(LogKind))


class AuditVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification."""

    rows: int
    head: str
    """`SEQUENCE:HASH` of the last row; keep it elsewhere."""
    problems: tuple[str, ...]
    """What is wrong, one sentence each; at most 100 of them."""
    signatures: int = 0
    """The number of signatures, made with people's keys, that were verified."""
    unverified: int = 0
    """The number of signatures that could not be verified, because the extra for them is not installed."""

    @property
    def is_whole(self) -> bool:
        return not self.problems


async def read_rows(store: Store, *, after: int = 0, execution_id: str | None = None) -> AsyncGenerator[AuditRow]:
    """Yield the rows with a number above `after`, oldest first: all of them, or those of one execution."""
    while page := await store.audit_rows(after=after, execution_id=execution_id, limit=PAGE):
        for row in page:
            yield row
        after = page[-1].sequence


class Verification:
    """Verifies an audit, once; `run` returns the verdict."""

    def __init__(self, store: Store, head: tuple[int, str] | None) -> None:
        self._store = store
        self._head = head
        self._problems: list[str] = []
        self._last, self._hash, self._count = 0, GENESIS, 0
        self._row_digests: dict[str, bytes] = {}
        """A digest of the rows about each execution that was not pruned."""
        self._newest = 0
        """The number of the last row that was read; new rows may be added while executions are compared."""
        self._pruned = set[str]()
        self._policies: dict[str, set[str]] = {}
        self._signatures = SignatureCheck()
        self._grants = GrantCheck()

    async def run(self) -> AuditVerdict:
        before = await self._read_keys_and_grants()
        async for row in read_rows(self._store):
            self._read_row(row)
        self._newest = self._last
        end = max(await self._store.audit_end(), self._head[0] if self._head is not None else 0)
        if end > self._last:
            self._problems.append(f"rows {self._last + 1} to {end} are missing at the end")
        # Keys and grants may change while the rows are read, so a difference counts only if it exists before and after.
        both = frozenset(self._compare_keys_and_grants(*await self._read_keys_and_grants()))
        self._problems.extend(problem for problem in self._compare_keys_and_grants(*before) if problem in both)
        await self._compare_stored()
        await self._compare_absent()
        return AuditVerdict(
            rows=self._count,
            head=f"{self._last}:{self._hash.hex()}",
            problems=tuple(self._problems[:MAX_PROBLEMS]),
            signatures=self._signatures.verified,
            unverified=self._signatures.unverified,
        )

    async def _read_keys_and_grants(self) -> tuple[tuple[SigningKey, ...], tuple[Grant, ...]]:
        keys = await KeyStore(self._store).all() if isinstance(self._store, HasRecords) else ()
        return keys, await self._store.grants(only_open=False, limit=MAX_GRANTS)

    def _compare_keys_and_grants(self, keys: tuple[SigningKey, ...], grants: tuple[Grant, ...]) -> Iterator[str]:
        yield from self._signatures.compare_keys(keys)
        yield from self._grants.compare(grants)

    def _read_row(self, row: AuditRow) -> None:
        entry, head = row.entry, self._head
        self._problems.extend(_find_faults(row, self._last + 1, self._hash))
        self._problems.extend(self._signatures.check_row(row))
        self._problems.extend(self._grants.check_row(row))
        if head is not None and row.sequence == head[0] and row.hash.hex() != head[1]:
            self._problems.append(f"row {row.sequence} does not have the hash of the head that was given")
        self._last, self._hash, self._count = row.sequence, row.hash, self._count + 1
        self._note(entry)
        while self._pruned:
            self._row_digests.pop(self._pruned.pop(), None)
        if entry.kind in LOG_KINDS and entry.execution_id is not None:
            row_digest = self._row_digests.get(entry.execution_id, b"")
            self._row_digests[entry.execution_id] = _add_to(row_digest, entry)

    async def _compare_stored(self) -> None:
        """Compare every stored execution with what the audit says about it."""
        after = ""
        while len(self._problems) < MAX_PROBLEMS and (page := await self._store.walk(after, PAGE)):
            for header in page:
                audit_digest = self._row_digests.pop(header.execution_id, b"")
                self._problems.extend(await self._compare(header, audit_digest))
            after = page[-1].execution_id

    async def _compare_absent(self) -> None:
        """Check the executions that are in the audit but that `_compare_stored` did not find."""
        for execution_id, audit_digest in self._row_digests.items():
            if len(self._problems) >= MAX_PROBLEMS:
                return
            header = await self._store.header(execution_id)
            if header is not None:
                self._problems.extend(await self._compare(header, audit_digest))
                continue
            await self._read_newer()
            if execution_id not in self._pruned:
                self._problems.append(f"execution {execution_id!r} is gone, and no row says that it was pruned")

    async def _read_newer(self) -> bool:
        """Note the policies and pruned executions in newer rows; return False when there are no newer rows."""
        before = self._newest
        async for row in read_rows(self._store, after=before):
            self._note(row.entry)
            self._newest = row.sequence
        return self._newest != before

    def _note(self, entry: AuditEntry) -> None:
        if entry.kind == "policy":
            policy = str(entry.facts.get("digest"))
            self._policies.setdefault(policy[:POLICY_CHARS], set()).add(policy)
        elif entry.kind == "pruned":
            executions = entry.facts.get("executions")
            self._pruned.update(map(str, executions) if isinstance(executions, list) else ())

    async def _compare(self, header: Header, audit_digest: bytes) -> list[str]:
        """Return how the log, the rows and the audit of an execution differ, while other processes may continue it."""
        execution_id = header.execution_id
        for _ in range(ATTEMPTS):
            try:
                differences = await self._find_differences(header, audit_digest)
            except PlanwardenError as error:
                differences = [f"cannot be compared: {error.message}"]
            if not differences:
                return []
            is_newer = await self._read_newer()
            now, digest_now = await self._store.header(execution_id), await self._digest_rows(execution_id)
            if now is None:
                await self._read_newer()
                return [] if execution_id in self._pruned else [f"execution {execution_id!r} is gone"]
            if (now.version, digest_now) == (header.version, audit_digest) and not is_newer:
                return [f"execution {execution_id!r}: {text}" for text in differences]
            header, audit_digest = now, digest_now
        return [f"execution {execution_id!r} changes faster than it can be compared; verify again later"]

    async def _find_differences(self, header: Header, audit_digest: bytes) -> list[str]:
        start = new_execution(header.execution_id, header.thread_id, header.principal)
        evidence = gather_evidence(start, await self._store.read(header.execution_id), self._policies)
        execution, differences = evidence.execution, list(evidence.faults)
        if (execution.status, execution.version) != (header.status, header.version):
            differences.append(f"its row says {header.status}, its log {execution.status}")
        for suspension_id, suspension in execution.suspensions.items():
            row = await self._store.find_suspension(suspension_id)
            if row is None or not row.fits(suspension):
                differences.append(f"the row of suspension {suspension_id!r} does not say what its log says")
        if reduce(_add_to, evidence.entries, b"") != audit_digest:
            differences.append("its log and the audit do not hold the same questions and decisions")
        return differences

    async def _digest_rows(self, execution_id: str) -> bytes:
        """Return the digest of the rows that the audit now has about the execution."""
        audit_digest = b""
        async for row in read_rows(self._store, execution_id=execution_id):
            if row.entry.kind in LOG_KINDS:
                audit_digest = _add_to(audit_digest, row.entry)
        return audit_digest


class GrantCheck:
    """Compares standing grants with what the audit says about them: their terms, their uses and their end."""

    def __init__(self) -> None:
        self._made: dict[str, dict[str, JsonValue]] = {}
        self._used: dict[str, int] = {}
        self._used_on: dict[str, tuple[int, int]] = {}
        """The latest day of a grant whose uses are counted by days, and its uses on that day."""
        self._revoked = set[str]()

    def check_row(self, row: AuditRow) -> Iterator[str]:
        """Yield the faults of the row that concern grants."""
        name, facts = str(row.entry.facts.get("grant")), row.entry.facts
        if row.entry.kind == "grant_made":
            self._made[name] = _drop_policy(facts)
        elif row.entry.kind == "grant_revoked":
            self._revoked.add(name)
        elif row.entry.kind == "granted":
            self._used[name] = self._used.get(name, 0) + 1
            if name not in self._made:
                yield f"row {row.sequence} names grant {name!r}, and no earlier row says that it was made"
            elif name in self._revoked:
                yield f"row {row.sequence} lets a call through after grant {name!r} was revoked"
            elif isinstance(uses := self._made[name].get("uses"), int) and self._count_use(name, row.at) > uses:
                yield f"row {row.sequence} lets through more calls than grant {name!r} allows"

    def _count_use(self, name: str, at: float) -> int:
        """Return the uses so far: of the day if the grant is for a step of a saved plan, else in all.

        A use near midnight is left out, because the store may have counted it for the day before or after.
        """
        if "per" not in self._made[name]:
            return self._used[name]
        day, count = self._used_on.get(name, (0, 0))
        if day_of(at - NEAR_MIDNIGHT_S) == (today := day_of(at + NEAR_MIDNIGHT_S)):
            self._used_on[name] = day, count = (today, 1) if today > day else (day, count + 1)
        return count

    def compare(self, stored: Iterable[Grant]) -> Iterator[str]:
        """Yield the differences between the stored grants and the grants in the audit."""
        remaining = {grant.grant_id: grant for grant in stored}
        for name, facts in self._made.items():
            grant = remaining.pop(name, None)
            if grant is None:
                yield f"grant {name!r} is in the audit and no longer stored, or damaged"
            elif describe_grant(grant) != facts:
                yield f"grant {name!r}: what is stored is not what the audit says was made"
            elif grant.used != self._used.get(name, 0) or (grant.revoked_at is not None) != (name in self._revoked):
                yield f"grant {name!r}: what is stored and the audit disagree about its uses or its end"
        yield from (f"grant {name!r} is stored and not in the audit" for name in remaining)


def _add_to(audit_digest: bytes, entry: AuditEntry) -> bytes:
    """Return the digest of the earlier rows and this entry. Leave out the policy, which no log records."""
    facts = canonical_json([entry.kind, entry.suspension_id, _drop_policy(entry.facts)])
    return hashlib.sha256(audit_digest + facts.encode()).digest()


def _drop_policy(facts: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in facts.items() if name != "policy"}


def _find_faults(row: AuditRow, expected: int, before: bytes) -> Iterator[str]:
    if row.sequence != expected:
        missing = f"row {expected} is" if row.sequence == expected + 1 else f"rows {expected} to {row.sequence - 1} are"
        yield f"{missing} missing"
        return
    if hash_row(before, row.sequence, row.at, row.entry) != row.hash:
        yield f"row {row.sequence} is not what was written, or not where it was written"


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


async def read_audit_page(
    store: Store, *, thread_id: str | None = None, limit: int = 50, cursor: str | None = None
) -> AuditPage:
    """Return a page of rows, oldest first: those of a thread's stored executions, or all if `thread_id` is None."""
    check_limit(limit, PAGE)
    after = 0 if cursor is None else _read_sequence(cursor)
    if after is None:
        raise InvalidArguments(f"cursor {(cursor or '')[:64]!r} does not come from this audit; start without a cursor")
    ids = [None] if thread_id is None else [header.execution_id for header in await store.thread(thread_id)]
    rows = [row for name in ids for row in await store.audit_rows(after=after, execution_id=name, limit=limit + 1)]
    rows.sort(key=lambda row: row.sequence)
    following = str(rows[limit - 1].sequence) if len(rows) > limit else None
    return AuditPage(rows=tuple(map(build_audit_line, rows[:limit])), next_cursor=following)


async def verify_audit(store: Store, head: str | None = None) -> AuditVerdict:
    """Verify the audit, and return the verdict. `head` is the head that an earlier verification or export printed."""
    return await Verification(store, _parse_head(head)).run()


def _parse_head(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    number, _, hash_ = text.strip().partition(":")
    sequence = _read_sequence(number)
    if sequence is None or len(hash_) != 64:
        raise InvalidArguments(
            f"{text[:100]!r} is not a head; it looks like 12:5f0c…, as `planwarden audit verify` prints it"
        )
    return sequence, hash_.lower()


def _read_sequence(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def build_audit_line(row: AuditRow) -> AuditLine:
    return copy_fields(AuditLine, row.entry, sequence=row.sequence, at=to_utc(row.at), hash=row.hash.hex())
