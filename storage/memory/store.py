"""The store without a disk: every law of the port except durability. For tests and throw-away use."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

import anyio
import msgspec
from msgspec.structs import replace

from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import (
    GrantUsedUp,
    GuardFailed,
    InvalidArguments,
    KeyUsed,
    LeaseLost,
    PlanUnfinished,
    ThreadBusy,
    ThreadMovedOn,
    VersionConflict,
)
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import (
    GENESIS,
    TASK_KINDS,
    AuditEntry,
    AuditRow,
    build_audit_entries,
    build_pruned_entry,
    hash_row,
)
from planwarden.agent.core.question import Addressee
from planwarden.agent.core.state import FINISHED, ExecutionState
from planwarden.agent.core.synopsis import StepProgress, Synopsis
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.grant import Grant, count_use, count_uses_left, is_open
from planwarden.agent.ports.holdings import HeldKey
from planwarden.agent.ports.listing import HOSTS_LOOKED_AT, ExecutionFilter, ListedPage
from planwarden.agent.ports.store import (
    Append,
    Changes,
    FoundId,
    Guard,
    Header,
    IdKind,
    Lease,
    Log,
    StartedExecution,
    StartRequest,
    SuspensionRow,
    SuspensionRowPage,
)
from planwarden.storage.clock import LEASE_S, SystemClock
from planwarden.storage.codec import encode_events
from planwarden.storage.holdings import project_holdings
from planwarden.storage.memory.holdings import MemoryHoldings
from planwarden.storage.memory.keys import MemoryKeys
from planwarden.storage.memory.listing import ListedRow, list_page
from planwarden.storage.memory.notifications import MemoryNotifications
from planwarden.storage.memory.schedules import MemorySchedules
from planwarden.storage.memory.sessions import MemorySessions
from planwarden.storage.memory.tokens import MemoryTokens
from planwarden.storage.ports.keys import KeyStore
from planwarden.storage.ports.sessions import SessionStore
from planwarden.storage.projection import (
    RISKS,
    ExecutionEnded,
    GrantUsed,
    Projection,
    SuspensionClosed,
    SuspensionOpened,
    SuspensionRowReminded,
    SuspensionRowRevised,
    SynopsisWritten,
    count_grant_uses,
    project,
)


class _Row(msgspec.Struct):
    header: Header
    log: list[ev.Recorded] = msgspec.field(default_factory=list[ev.Recorded])
    artifacts: dict[str, Artifact] = msgspec.field(default_factory=dict[str, Artifact])
    plan: str | None = None
    """Digest of the plan that it was started with."""
    synopsis: Synopsis | None = None
    """From the transaction that creates it on."""
    progress: StepProgress = msgspec.field(default_factory=StepProgress)
    fault: str = ""


class MemoryStore:
    """Several engines may share one instance, as processes share a file; it is used from one event loop."""

    def __init__(self, clock: Clock | None = None, *, lease_s: float = LEASE_S) -> None:
        self._clock = clock or SystemClock()
        self._lease_s = lease_s
        self._rows: dict[str, _Row] = {}
        self._suspensions: dict[str, SuspensionRow] = {}
        self._risk_ranks: dict[str, int] = {}
        self._closed_at: dict[str, float] = {}
        self._started: dict[tuple[str, str], StartedExecution] = {}
        """By principal and key."""
        self._grants: dict[str, Grant] = {}
        self._holdings = MemoryHoldings()
        self._audit: list[AuditRow] = []
        self._notifications = MemoryNotifications(
            self._clock, lambda entries: self._add_entries(entries, self._clock.now(), "")
        )
        self._changes = 0
        self._tokens = MemoryTokens(self.audit)
        self._sessions = MemorySessions(self.audit)
        self._keys = MemoryKeys(self.audit)
        self._schedules = MemorySchedules(self.audit)

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def tokens(self) -> MemoryTokens:
        return self._tokens

    @property
    def sessions(self) -> SessionStore:
        return self._sessions

    @property
    def notifications(self) -> MemoryNotifications:
        return self._notifications

    @property
    def schedules(self) -> MemorySchedules:
        return self._schedules

    @property
    def signing_keys(self) -> KeyStore:
        return self._keys

    async def append(self, append: Append) -> Lease | None:
        # As in a database, what could not be read back is refused before anything changes.
        encode_events(recorded.event for recorded in append.recorded)
        now = self._clock.now()
        execution_id = append.execution.execution_id
        row = self._rows.get(execution_id)
        for guard in append.guards:
            self._check(guard, now)
        projected = project(append)
        for grant_id, wanted in count_grant_uses(projected.changes).items():
            grant = self._grants.get(grant_id)
            if grant is None or not is_open(grant, now) or count_uses_left(grant, now) < wanted:
                raise GrantUsedUp(grant_id)
        holdings = project_holdings(append)
        if holdings is not None:
            self._holdings.check(holdings, now)
        if append.start is not None:
            self._check_start(append.start, append.execution.principal)
            self._check_thread_end(append.start, append.execution.thread_id)
        if append.expected_version == 0:
            held = self._create(append, row, now)
        else:
            held = self._extend(append, row, now)
        if append.start is not None:
            self._add_start(append.start, append.execution)
        self._rows[execution_id].log.extend(append.recorded)
        self._rows[execution_id].artifacts.update((found.artifact_id, found) for found in append.artifacts)
        self._project(append, projected, now)
        if holdings is not None:
            self._holdings.write(holdings, now)
        self._rows[execution_id].progress = projected.progress or self._rows[execution_id].progress
        entries = build_audit_entries(append.recorded, append.execution, append.policy)
        if entries:
            self._add_entries(entries, append.recorded[0].at, append.policy)
        self._notifications.add(append.notifications)
        self._changes += 1
        return held

    def _create(self, append: Append, row: _Row | None, now: float) -> Lease | None:
        if row is not None:
            raise VersionConflict(f"execution {append.execution.execution_id!r} exists already")
        thread_id = append.execution.thread_id
        self._check_thread(thread_id)
        held = Lease(append.execution.execution_id, append.owner, 1) if append.acquire and not append.release else None
        self._rows[append.execution.execution_id] = _Row(
            Header(
                execution_id=append.execution.execution_id,
                thread_id=thread_id,
                principal=append.execution.principal,
                status=append.execution.status,
                version=append.execution.version,
                created_at=now,
                updated_at=now,
                owner=held.owner if held else None,
                fence=1,
                leased_until=self._leased_until() if held else 0.0,
            )
        )
        return held

    def _check_start(self, start: StartRequest, principal: str) -> None:
        if start.key is not None and (principal, start.key) in self._started:
            raise KeyUsed
        if start.plan is None or not start.is_only:
            return
        for row in self._rows.values():
            header = row.header
            if row.plan == start.plan and header.principal == principal and header.status not in FINISHED:
                ids = (key for (_, key), found in self._started.items() if found.execution_id == header.execution_id)
                raise PlanUnfinished(header.execution_id, header.thread_id, next(ids, None), start.plan)

    def _check_thread_end(self, start: StartRequest, thread_id: str) -> None:
        if start.after is not None:
            headers = [row.header for row in self._rows.values() if row.header.thread_id == thread_id]
            newest = headers[-1] if headers else None
            if newest is None or (newest.execution_id, newest.version) != (start.after, start.after_version):
                raise ThreadMovedOn

    def _add_start(self, start: StartRequest, execution: ExecutionState) -> None:
        if start.plan is not None:
            self._rows[execution.execution_id].plan = start.plan
        if start.key is not None:
            self._started[execution.principal, start.key] = StartedExecution(
                execution_id=execution.execution_id, thread_id=execution.thread_id, request=start.request
            )

    def _check_thread(self, thread_id: str) -> None:
        if any(r.header.thread_id == thread_id and r.header.status not in FINISHED for r in self._rows.values()):
            raise ThreadBusy(f"thread {thread_id!r} has an unfinished execution")

    def _extend(self, append: Append, row: _Row | None, now: float) -> Lease | None:
        if row is None:
            raise VersionConflict(f"execution {append.execution.execution_id!r} does not exist")
        header, lease = row.header, append.lease
        if lease is not None and (header.owner != lease.owner or header.fence != lease.fence):
            raise LeaseLost(f"execution {header.execution_id!r} is owned by another process")
        if header.version != append.expected_version:
            raise VersionConflict(f"execution {header.execution_id!r} has grown to version {header.version}")
        if header.status in FINISHED:
            self._check_thread(header.thread_id)
        if append.acquire and lease is None:
            if header.owner is not None:
                raise LeaseLost(f"execution {header.execution_id!r} is owned by another process")
            lease = Lease(header.execution_id, append.owner, header.fence + 1)
        changed = replace(header, status=append.execution.status, version=append.execution.version, updated_at=now)
        if lease is not None:
            owner, until = (None, 0.0) if append.release else (lease.owner, self._leased_until())
            changed = replace(changed, owner=owner, fence=lease.fence, leased_until=until)
        row.header = changed
        return None if append.release else lease

    def _check(self, guard: Guard, now: float) -> None:
        row = self._suspensions.get(guard.suspension_id)
        if row is None or row.status != "pending" or row.digest != guard.digest:
            raise GuardFailed(f"suspension {guard.suspension_id!r} is no longer pending in that form")
        passed = row.expires_at is not None and row.expires_at <= now
        if guard.deadline != "any" and passed != (guard.deadline == "passed"):
            raise GuardFailed(f"suspension {guard.suspension_id!r} has {'' if passed else 'not '}expired")

    def _project(self, append: Append, projected: Projection, now: float) -> None:
        execution = append.execution
        principal = self._rows[execution.execution_id].header.principal
        for change in projected.changes:
            if isinstance(change, SuspensionOpened | SuspensionRowRevised):
                question = change.question
                known = self._suspensions.get(question.suspension_id)
                self._risk_ranks[question.suspension_id] = RISKS.index(question.risk)
                self._suspensions[question.suspension_id] = SuspensionRow(
                    suspension_id=question.suspension_id,
                    execution_id=execution.execution_id,
                    thread_id=execution.thread_id,
                    principal=principal,
                    addressee=question.addressee,
                    status="pending",
                    digest=question.digest,
                    created_at=known.created_at if known else append.recorded[0].at,
                    expires_at=question.expires_at,
                    alarm_at=change.alarm_at,
                )
            elif isinstance(change, SuspensionRowReminded):
                row = self._suspensions[change.suspension_id]
                self._suspensions[change.suspension_id] = replace(row, alarm_at=change.alarm_at)
            elif isinstance(change, SuspensionClosed):
                row = self._suspensions[change.suspension_id]
                self._suspensions[change.suspension_id] = replace(row, status=change.status)
                self._closed_at[change.suspension_id] = change.at
            elif isinstance(change, GrantUsed):
                self._grants[change.grant_id] = count_use(self._grants[change.grant_id], now)
            elif isinstance(change, SynopsisWritten):
                self._rows[execution.execution_id].synopsis = change.synopsis
            elif isinstance(change, ExecutionEnded):
                self._rows[execution.execution_id].fault = change.fault
            else:
                for suspension_id, row in self._suspensions.items():
                    if row.execution_id == execution.execution_id and row.status == "pending":
                        self._suspensions[suspension_id] = replace(row, status="withdrawn")
                        self._closed_at[suspension_id] = change.at

    async def header(self, execution_id: str) -> Header | None:
        row = self._rows.get(execution_id)
        return row.header if row else None

    async def headers(self, execution_ids: Collection[str]) -> tuple[Header, ...]:
        return tuple(self._rows[name].header for name in execution_ids if name in self._rows)

    async def log(self, execution_id: str) -> Log | None:
        row = self._rows.get(execution_id)
        return Log(row.header, tuple(row.log)) if row else None

    async def read(self, execution_id: str, after: int = 0) -> tuple[ev.Recorded, ...]:
        row = self._rows.get(execution_id)
        return tuple(row.log[after:]) if row else ()

    async def artifact(self, thread_id: str, artifact_id: str) -> Artifact | None:
        rows = (row for row in self._rows.values() if row.header.thread_id == thread_id)
        return next((row.artifacts[artifact_id] for row in rows if artifact_id in row.artifacts), None)

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        return tuple(row.header for row in self._rows.values() if row.header.thread_id == thread_id)

    async def executions(self, principal: str | None, limit: int) -> tuple[Header, ...]:
        found = [r.header for r in self._rows.values() if principal is None or r.header.principal == principal]
        return tuple(found[::-1][:limit])

    async def list_executions(
        self, wanted: ExecutionFilter, *, limit: int = 25, cursor: str | None = None
    ) -> ListedPage:
        pending: dict[str, list[SuspensionRow]] = {}
        for row in self._suspensions.values():
            if row.status == "pending":
                pending.setdefault(row.execution_id, []).append(row)
        rows = [
            ListedRow(number, row.header, row.synopsis, row.progress, row.fault, tuple(pending.get(name, ())))
            for number, (name, row) in enumerate(self._rows.items(), 1)
            if row.synopsis is not None
        ]
        return list_page(rows, wanted, limit, cursor)

    async def list_hosts(self) -> tuple[str, ...]:
        newest = islice(reversed(self._rows.values()), HOSTS_LOOKED_AT)
        return tuple(sorted({row.synopsis.host for row in newest if row.synopsis is not None and row.synopsis.host}))

    async def walk(self, after: str, limit: int) -> tuple[Header, ...]:
        return tuple(self._rows[name].header for name in sorted(n for n in self._rows if n > after)[:limit])

    async def find_start(self, principal: str, key: str) -> StartedExecution | None:
        return self._started.get((principal, key))

    async def find_once(self, keys: Collection[str]) -> tuple[HeldKey, ...]:
        return tuple(self._holdings.find(keys, self._clock.now()))

    async def list_once(self, tool_name: str | None, limit: int) -> tuple[HeldKey, ...]:
        return tuple(self._holdings.list(tool_name, self._clock.now())[:limit])

    async def find_suspension(self, suspension_id: str) -> SuspensionRow | None:
        return self._suspensions.get(suspension_id)

    async def find_ids(self, beginning: str, limit: int) -> tuple[FoundId, ...]:
        headers = [row.header for row in self._rows.values()]
        found: dict[IdKind, dict[str, str]] = {
            "execution": {header.execution_id: header.thread_id for header in headers},
            "suspension": {row.suspension_id: row.thread_id for row in self._suspensions.values()},
            "thread": {header.thread_id: header.thread_id for header in headers},
        }
        return tuple(
            FoundId(kind, name, threads[name])
            for kind, threads in found.items()
            for name in sorted(name for name in threads if name.startswith(beginning))[:limit]
        )

    async def suspensions(
        self,
        *,
        principal: str | None = None,
        thread_id: str | None = None,
        addressee: Addressee | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> SuspensionRowPage:
        found = [
            row
            for row in self._suspensions.values()
            if row.status == "pending"
            and row.addressee != "clock"
            and (principal is None or row.principal == principal)
            and (thread_id is None or row.thread_id == thread_id)
            and (addressee is None or row.addressee == addressee)
        ]
        start = 0
        if cursor is not None:
            ids = [row.suspension_id for row in self._suspensions.values()]
            known = self._suspensions.get(cursor)
            if known is None or (principal is not None and known.principal != principal):
                raise InvalidArguments(f"cursor {cursor!r} is not one that this server gave out")
            position = ids.index(cursor)
            start = next((i for i, row in enumerate(found) if ids.index(row.suspension_id) > position), len(found))
        page = found[start : start + limit]
        more = start + limit < len(found)
        return SuspensionRowPage(tuple(page), len(found), page[-1].suspension_id if more else None)

    async def waiting(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        if cursor is not None and cursor not in self._suspensions:
            raise InvalidArguments(f"cursor {cursor!r} is not one that this server gave out")
        places = {name: (self._risk_ranks[name], number) for number, name in enumerate(self._suspensions)}
        people = [row for row in self._suspensions.values() if (row.status, row.addressee) == ("pending", "human")]
        after = (-1, 0) if cursor is None else places[cursor]
        found = sorted(
            (row for row in people if places[row.suspension_id] > after), key=lambda row: places[row.suspension_id]
        )
        page = tuple(found[:limit])
        return SuspensionRowPage(page, len(people), page[-1].suspension_id if len(found) > limit else None)

    async def decided(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        if cursor is not None and cursor not in self._closed_at:
            raise InvalidArguments(f"cursor {cursor!r} is not one that this server gave out")
        places = {
            name: (self._closed_at[name], i) for i, name in enumerate(self._suspensions) if name in self._closed_at
        }
        found = [self._suspensions[name] for name in sorted(places, key=places.__getitem__, reverse=True)]
        found = [row for row in found if row.addressee == "human"]
        if cursor is not None:
            found = [row for row in found if places[row.suspension_id] < places[cursor]]
        page = tuple(found[:limit])
        return SuspensionRowPage(page, len(page), page[-1].suspension_id if len(found) > limit else None)

    async def due(self, limit: int) -> tuple[SuspensionRow, ...]:
        now = self._clock.now()
        turns: Counter[str] = Counter()
        found: list[tuple[int, float, SuspensionRow]] = []
        for at, row in sorted(self._waking(), key=lambda pair: pair[0]):
            if at <= now:
                turns[row.principal] += 1
                found.append((turns[row.principal], at, row))
        return tuple(row for *_, row in sorted(found, key=lambda entry: entry[:2])[:limit])

    async def next_deadline(self) -> float | None:
        return min((at for at, _ in self._waking()), default=None)

    def _waking(self) -> Iterator[tuple[float, SuspensionRow]]:
        """When each pending question needs the scheduler next."""
        for row in self._suspensions.values():
            moments = [at for at in (row.alarm_at, row.expires_at) if at is not None]
            if row.status == "pending" and moments:
                yield min(moments), row

    async def claim(self, execution_id: str, owner: str, *, silent_s: float = 0.0) -> Lease | None:
        row = self._rows.get(execution_id)
        if row is None or row.header.status != "running":
            return None
        is_owned = row.header.owner is not None
        if is_owned and row.header.leased_until > self._clock.steady() - silent_s:
            return None
        fence, before, until = row.header.fence + 1, row.header.leased_until, self._leased_until()
        row.header = replace(row.header, owner=owner, fence=fence, leased_until=until)
        return Lease(execution_id, owner, fence, is_from_silent=is_owned, left_s=until - before if before else None)

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        free = [
            row.header for row in self._rows.values() if row.header.status == "running" and row.header.owner is None
        ]
        wanted = [header.execution_id for header in free if header.execution_id not in skip][:limit]
        return tuple([lease for name in wanted if (lease := await self.claim(name, owner)) is not None])

    async def expire_dead(self) -> None:
        """Its processes end together with it."""

    async def confirm(self, lease: Lease) -> None:
        row = self._rows.get(lease.execution_id)
        if row is None or (row.header.owner, row.header.fence) != (lease.owner, lease.fence):
            raise LeaseLost(f"execution {lease.execution_id!r} is owned by another process")
        row.header = replace(row.header, leased_until=self._leased_until())

    def _leased_until(self) -> float:
        return self._clock.steady() + self._lease_s

    async def orphans(self, limit: int, *, ahead_s: float = 0.0, after: str = "") -> tuple[str, ...]:
        until, headers = self._clock.steady() + ahead_s, [row.header for row in self._rows.values()]
        first = next((place for place, header in enumerate(headers, 1) if header.execution_id == after), 0)
        return tuple(
            header.execution_id
            for header in headers[first:]
            if header.status == "running" and (header.owner is None or header.leased_until <= until)
        )[:limit]

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        until = self._leased_until()
        for name in execution_ids:
            row = self._rows.get(name)
            if row is not None and row.header.owner == owner and row.header.status == "running":
                row.header = replace(row.header, leased_until=until)

    async def release(self, lease: Lease) -> None:
        row = self._rows.get(lease.execution_id)
        if row is not None and row.header.owner == lease.owner and row.header.fence == lease.fence:
            row.header = replace(row.header, owner=None, leased_until=0.0)

    async def changes(self, since: int) -> Changes:
        return Changes(self._changes)

    async def wait_for_changes(self, since: int, timeout_s: float) -> None:
        await anyio.sleep(timeout_s)

    async def prune(self, before: float) -> int:
        old = [
            row.header.execution_id
            for row in self._rows.values()
            if row.header.status in FINISHED and row.header.updated_at < before
        ]
        for execution_id in old:
            del self._rows[execution_id]
        self._suspensions = {
            suspension_id: row for suspension_id, row in self._suspensions.items() if row.execution_id in self._rows
        }
        self._closed_at = {name: at for name, at in self._closed_at.items() if name in self._suspensions}
        self._started = {key: found for key, found in self._started.items() if found.execution_id in self._rows}
        if old:
            await self.audit((build_pruned_entry(old),))
        return len(old)

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        self._grants[grant.grant_id] = grant
        await self.audit((entry,))

    async def revoke_grant(self, grant_id: str, entry: AuditEntry) -> bool:
        grant = self._grants.get(grant_id)
        if grant is None or grant.revoked_at is not None:
            return False
        self._grants[grant_id] = replace(grant, revoked_at=self._clock.now())
        await self.audit((entry,))
        return True

    async def grants(self, *, only_open: bool, limit: int = 1000) -> tuple[Grant, ...]:
        now = self._clock.now()
        found = [grant for grant in self._grants.values() if not only_open or is_open(grant, now)]
        return tuple(found[::-1][:limit])

    async def take_once(self, once: ev.OnceKey, holder: str, entry: AuditEntry) -> bool:
        is_taken = self._holdings.take(once, holder, self._clock.now())
        if is_taken:
            await self.audit((entry,))
        return is_taken

    async def forget_once(self, key: str, entry: AuditEntry) -> bool:
        is_forgotten = self._holdings.forget(key)
        if is_forgotten:
            await self.audit((entry,))
        return is_forgotten

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        self._add_entries(entries, self._clock.now(), "")
        self._changes += 1

    def _add_entries(self, entries: Sequence[AuditEntry], at: float, policy: str) -> None:
        known = [row.entry.facts.get("digest") for row in self._audit if row.entry.kind == "policy"]
        if policy and (not known or known[-1] != policy):
            entries = (AuditEntry(kind="policy", facts={"digest": policy}), *entries)
        for entry in entries:
            sequence = len(self._audit) + 1
            before = self._audit[-1].hash if self._audit else GENESIS
            hash_ = hash_row(before, sequence, at, entry)
            self._audit.append(AuditRow(sequence=sequence, at=at, entry=entry, hash=hash_))

    async def audit_rows(
        self, *, after: int = 0, execution_id: str | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        rows = (row for row in self._audit if row.sequence > after)
        wanted = (row for row in rows if execution_id is None or row.entry.execution_id == execution_id)
        return tuple(islice(wanted, limit))

    async def task_rows(self, execution_id: str, *, after: int = 0, limit: int = 100) -> tuple[AuditRow, ...]:
        rows = (row for row in self._audit if row.sequence > after and row.entry.kind in TASK_KINDS)
        return tuple(islice((row for row in rows if row.entry.execution_id == execution_id), limit))

    async def audit_end(self) -> int:
        return len(self._audit)

    async def close(self) -> None:
        """Nothing to close; the content stays for the next user of the instance."""
