"""The store on a SQLite file that several processes may share.

One writer thread with group commit, one reader thread. Every law of the port is a condition in SQL, checked inside the
transaction that relies on it. The statements are in `statements.sql`, the schema in `migrations/`.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from zlib import crc32

from planwarden.agent.common.artifact import Artifact, check_artifact
from planwarden.agent.common.errors import (
    GuardFailed,
    InvalidArguments,
    LeaseLost,
    StoreError,
    ThreadBusy,
    VersionConflict,
)
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry, AuditRow
from planwarden.agent.core.audit import build_audit_entries as audited
from planwarden.agent.core.state import TRANSITIONS
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import Append, Grant, Guard, Header, Lease, SuspensionRow, SuspensionRowPage
from planwarden.storage.clock import LEASE_S, SystemClock
from planwarden.storage.codec import decode_events, encode_events
from planwarden.storage.locks import LivenessFile, WriteLock
from planwarden.storage.ports.keys import KeyStore
from planwarden.storage.ports.sessions import SessionStore
from planwarden.storage.projection import (
    GrantUsed,
    RowChange,
    SuspensionClosed,
    SuspensionOpened,
    SuspensionRowReminded,
    SuspensionRowRevised,
    grant_uses,
    projection,
)
from planwarden.storage.sqlite import audit as sqlite_audit
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite import grants as sqlite_grants
from planwarden.storage.sqlite.keys import SqliteKeys
from planwarden.storage.sqlite.notifications import SqliteNotifications, add_notifications
from planwarden.storage.sqlite.sessions import SqliteSessions
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.tokens import SqliteTokens
from planwarden.storage.sqlite.worker import Worker


class SqliteStore:
    """Open with `SqliteStore.open`, close when done."""

    def __init__(
        self,
        path: Path,
        writer: Worker,
        reader: Worker,
        life: LivenessFile,
        lock: WriteLock,
        clock: Clock,
        lease_s: float,
    ) -> None:
        self.path = path
        self._writer = writer
        self._reader = reader
        self._life = life
        self._lock = lock
        self._clock = clock
        self._lease_s = lease_s
        self._tokens = SqliteTokens(writer, reader)
        self._sessions = SqliteSessions(writer, reader, life)
        self._notifications = SqliteNotifications(writer, reader, clock)
        self._keys = SqliteKeys(writer, reader)

    @classmethod
    def open(cls, path: Path, *, clock: Clock | None = None, lease_s: float = LEASE_S) -> "SqliteStore":
        """Create or open the file at `path` and bring its schema up to date.

        Raises:
            StoreError: the file must not or cannot be used; it was left as it was.
        """
        database.prepare(path)
        lock = WriteLock(path.with_name(path.name + ".lock"))
        try:
            # Turning write-ahead logging on ignores the busy time-out, so on every version openers take turns.
            with lock.held():
                connection = _migrated(path)
        except BaseException:
            lock.close()
            raise
        held = lock.held if database.needs_write_lock() else nullcontext
        writer = Worker(connection, path, group=True, lock=held)
        reader = Worker(database.connect(path, readonly=True), path, group=False)
        life = LivenessFile(path.parent / "owners")
        return cls(path, writer, reader, life, lock, clock or SystemClock(), lease_s)

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def tokens(self) -> SqliteTokens:
        return self._tokens

    @property
    def sessions(self) -> SessionStore:
        """Codes and sessions of the inbox, in the same file."""
        return self._sessions

    @property
    def notifications(self) -> SqliteNotifications:
        return self._notifications

    @property
    def signing_keys(self) -> KeyStore:
        """Keys with which people sign, in the same file."""
        return self._keys

    async def append(self, append: Append) -> Lease | None:
        if append.acquire:
            self._life.announce(append.owner)
        body = encode_events(recorded.event for recorded in append.recorded)
        changes = tuple(projection(append))
        entries = tuple(audited(append.recorded, append.execution, append.policy))
        return await self._writer.run(lambda connection: self._append(connection, append, body, changes, entries))

    def _append(
        self,
        connection: sqlite3.Connection,
        append: Append,
        body: str,
        changes: tuple[RowChange, ...],
        entries: tuple[AuditEntry, ...],
    ) -> Lease | None:
        now = self._clock.now()
        for guard in append.guards:
            _check(connection, guard, now)
        if changes:
            sqlite_grants.check_uses(connection, grant_uses(changes), now)
        try:
            number, lease = self._advance(connection, append, now)
        except sqlite3.IntegrityError as error:
            raise _not_unique(append, error) from error
        first, at = append.expected_version + 1, append.recorded[0].at
        checksum = _checksum(append.execution.execution_id, first, float(at), body)
        connection.execute(SQL["add_events"], (number, first, at, body, checksum))
        for change in changes:
            _project(connection, number, append, change)
        if entries:
            sqlite_audit.add_entries(connection, entries, append.recorded[0].at, append.policy)
        for found in append.artifacts:
            connection.execute(SQL["add_artifact"], (number, found.artifact_id, found.media_type, found.data))
        if append.notifications:
            add_notifications(connection, append.notifications, now)
        return lease

    def _advance(self, connection: sqlite3.Connection, append: Append, now: float) -> tuple[int, Lease | None]:
        """The execution's row number and the lease the writer holds now; the only conditional write of an append."""
        execution, lease = append.execution, append.lease
        if append.expected_version == 0:
            return self._create(connection, append, now)
        if lease is not None:
            owner, until = (None, 0.0) if append.release else (lease.owner, now + self._lease_s)
            found = connection.execute(
                SQL["extend_owned"],
                (
                    execution.status,
                    execution.version,
                    now,
                    owner,
                    until,
                    execution.execution_id,
                    append.expected_version,
                    lease.owner,
                    lease.fence,
                ),
            ).fetchone()
            if found is not None:
                return int(found[0]), None if append.release else lease
        elif append.acquire:
            owner, until = (None, 0.0) if append.release else (append.owner, now + self._lease_s)
            found = connection.execute(
                SQL["extend_taking"],
                (
                    execution.status,
                    execution.version,
                    now,
                    owner,
                    until,
                    execution.execution_id,
                    append.expected_version,
                    now,
                ),
            ).fetchone()
            if found is not None:
                taken = Lease(execution.execution_id, append.owner, int(found[1]))
                return int(found[0]), None if append.release else taken
        else:
            found = connection.execute(
                SQL["extend_unowned"],
                (execution.status, execution.version, now, execution.execution_id, append.expected_version),
            ).fetchone()
            if found is not None:
                return int(found[0]), None
        raise _conflict(connection, append)

    def _create(self, connection: sqlite3.Connection, append: Append, now: float) -> tuple[int, Lease | None]:
        execution = append.execution
        holds = append.acquire and not append.release
        number = connection.execute(
            SQL["create_execution"],
            (
                execution.execution_id,
                execution.thread_id,
                execution.principal,
                execution.status,
                execution.version,
                now,
                now,
                append.owner if holds else None,
                now + self._lease_s if holds else 0.0,
            ),
        ).lastrowid
        if number is None:
            raise StoreError("SQLite gave no row number for a new execution")
        return number, Lease(execution.execution_id, append.owner, 1) if holds else None

    async def header(self, execution_id: str) -> Header | None:
        rows = await self._rows("header", (execution_id,))
        return _header(rows[0]) if rows else None

    async def read(self, execution_id: str, after: int = 0) -> tuple[ev.Recorded, ...]:
        recorded: list[ev.Recorded] = []
        version = following = 0
        for version, first, at, body, checksum in await self._rows("read_events", (execution_id, after + 1)):
            # A flipped bit may turn a column into a value of another type.
            if type(version) is not int or type(first) is not int:
                raise _damaged(execution_id, "it does not say where its events belong")
            if first != following if recorded else first > after + 1:
                raise _damaged(execution_id, f"events are missing before event {first}")
            if checksum != _checksum(execution_id, first, at, body):
                raise _damaged(execution_id, f"the events from {first} on are not what was written")
            events = decode_events(body)
            recorded.extend(
                ev.Recorded(sequence=sequence, at=at, event=event) for sequence, event in enumerate(events, first)
            )
            following = first + len(events)
        if recorded and following != version + 1:
            raise _damaged(execution_id, f"it ends with event {following - 1} instead of {version}")
        return tuple(entry for entry in recorded if entry.sequence > after)

    async def artifact(self, thread_id: str, artifact_id: str) -> Artifact | None:
        rows = await self._rows("find_artifact", (thread_id, artifact_id))
        return check_artifact(artifact_id, *rows[0]) if rows else None

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        return tuple(map(_header, await self._rows("thread", (thread_id,))))

    async def executions(self, principal: str | None, limit: int) -> tuple[Header, ...]:
        return tuple(map(_header, await self._rows("executions", (principal, limit))))

    async def find_suspension(self, suspension_id: str) -> SuspensionRow | None:
        rows = await self._rows("find_suspension", (suspension_id,))
        return _suspension(rows[0]) if rows else None

    async def suspensions(
        self,
        *,
        principal: str | None = None,
        thread_id: str | None = None,
        addressee: ev.Addressee | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> SuspensionRowPage:
        def page(connection: sqlite3.Connection) -> SuspensionRowPage:
            start = 0
            if cursor is not None:
                found = connection.execute(SQL["suspension_number"], (cursor, principal)).fetchone()
                if found is None:
                    raise InvalidArguments(f"cursor {cursor!r} is not one that this server gave out")
                start = int(found[0])
            chosen = (principal, thread_id, addressee)
            rows = connection.execute(SQL["pending_suspensions"], (start, *chosen, limit + 1)).fetchall()
            is_everybody = principal is None and thread_id is None
            counted = ("count_open", (addressee,)) if is_everybody else ("count_suspensions", chosen)
            total = int(connection.execute(SQL[counted[0]], counted[1]).fetchone()[0])
            shown = tuple(map(_suspension, rows[:limit]))
            return SuspensionRowPage(shown, total, shown[-1].suspension_id if len(rows) > limit else None)

        return await self._reader.run(page)

    async def decided(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        def page(connection: sqlite3.Connection) -> SuspensionRowPage:
            before: int | None = None
            if cursor is not None:
                found = connection.execute(SQL["suspension_number"], (cursor, None)).fetchone()
                if found is None:
                    raise InvalidArguments(f"cursor {cursor!r} is not one that this server gave out")
                before = int(found[0])
            rows = connection.execute(SQL["decided_suspensions"], (before, limit + 1)).fetchall()
            shown = tuple(map(_suspension, rows[:limit]))
            return SuspensionRowPage(shown, len(shown), shown[-1].suspension_id if len(rows) > limit else None)

        return await self._reader.run(page)

    async def due(self, limit: int) -> tuple[SuspensionRow, ...]:
        return tuple(map(_suspension, await self._rows("due_suspensions", (self._clock.now(), limit))))

    async def next_deadline(self) -> float | None:
        rows = await self._rows("next_deadline", ())
        return rows[0][0] if rows else None

    async def claim(self, execution_id: str, owner: str) -> Lease | None:
        self._life.announce(owner)

        def take(connection: sqlite3.Connection) -> Lease | None:
            now = self._clock.now()
            parameters = (owner, now + self._lease_s, execution_id, now)
            found = connection.execute(SQL["claim"], parameters).fetchone()
            return Lease(execution_id, owner, int(found[0])) if found else None

        await self._expire_the_dead()
        return await self._writer.run(take)

    async def orphans(self, limit: int) -> tuple[str, ...]:
        await self._expire_the_dead()
        return tuple(row[0] for row in await self._rows("orphans", (self._clock.now(), limit)))

    async def _expire_the_dead(self) -> None:
        """A process that died without releasing its leases need not be waited for."""
        owners = [str(row[0]) for row in await self._rows("owners", (self._clock.now(),))]
        dead = [owner for owner in owners if self._life.is_dead(owner)]
        if dead:
            await self._writer.run(
                lambda connection: connection.executemany(SQL["expire_owner"], [(owner,) for owner in dead]).rowcount
            )

    async def renew(self, owner: str) -> None:
        until = self._clock.now() + self._lease_s
        await self._writer.run(lambda connection: connection.execute(SQL["renew"], (until, owner)).rowcount)

    async def release(self, lease: Lease) -> None:
        parameters = (lease.execution_id, lease.owner, lease.fence)
        await self._writer.run(lambda connection: connection.execute(SQL["release"], parameters).rowcount)

    async def changes(self) -> int:
        return await self._reader.run(lambda connection: int(connection.execute("PRAGMA data_version").fetchone()[0]))

    async def prune(self, before: float) -> int:
        total = 0
        while True:
            pruned = await self._writer.run(lambda connection: _prune(connection, before))
            total += pruned
            if pruned == 0:
                return total

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        def add(connection: sqlite3.Connection) -> None:
            sqlite_grants.add_grant(connection, grant)
            sqlite_audit.add_entries(connection, (entry,), self._clock.now())

        await self._writer.run(add)

    async def revoke_grant(self, grant_id: str, entry: AuditEntry) -> bool:
        def revoke(connection: sqlite3.Connection) -> bool:
            now = self._clock.now()
            is_revoked = sqlite_grants.revoke_grant(connection, grant_id, now)
            if is_revoked:
                sqlite_audit.add_entries(connection, (entry,), now)
            return is_revoked

        return await self._writer.run(revoke)

    async def grants(self, *, only_open: bool, limit: int = 1000) -> tuple[Grant, ...]:
        open_at = self._clock.now() if only_open else None
        return await self._reader.run(lambda connection: sqlite_grants.read_grants(connection, open_at, limit))

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        now = self._clock.now()
        await self._writer.run(lambda connection: sqlite_audit.add_entries(connection, entries, now))

    async def audit_rows(
        self, *, after: int = 0, execution_id: str | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        return await self._reader.run(lambda connection: sqlite_audit.read_rows(connection, after, execution_id, limit))

    async def task_rows(self, execution_id: str, *, after: int = 0, limit: int = 100) -> tuple[AuditRow, ...]:
        return await self._reader.run(
            lambda connection: sqlite_audit.read_task_rows(connection, execution_id, after, limit)
        )

    async def audit_end(self) -> int:
        return await self._reader.run(sqlite_audit.end)

    async def backup(self, target: Path) -> None:
        """A consistent copy at `target` while others go on writing. Raises `StoreError` when it exists."""
        await self._reader.run(lambda connection: database.backup(connection, target))

    async def check(self) -> dict[str, int | str]:
        """Facts for a health report: `integrity` is `ok` or SQLite's first complaint; counts of rows; file version."""

        def facts(connection: sqlite3.Connection) -> dict[str, int | str]:
            executions, running, pending = connection.execute(SQL["totals"]).fetchone()
            return {
                "integrity": str(connection.execute("PRAGMA quick_check(1)").fetchone()[0]),
                "schema": int(connection.execute("PRAGMA user_version").fetchone()[0]),
                "executions": int(executions),
                "running": int(running),
                "pending": int(pending),
                "size_bytes": self.path.stat().st_size,
            }

        return await self._reader.run(facts)

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._life.retire()
        self._lock.close()

    async def _rows(self, name: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        return await self._reader.run(lambda connection: connection.execute(SQL[name], tuple(parameters)).fetchall())


def _migrated(path: Path) -> sqlite3.Connection:
    connection = database.connect(path)
    try:
        database.migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, guard: Guard, now: float) -> None:
    found = connection.execute(SQL["read_guarded"], (guard.suspension_id,)).fetchone()
    if found is None or found[0] != "pending" or found[1] != guard.digest:
        raise GuardFailed(f"suspension {guard.suspension_id!r} is no longer pending in that form")
    passed = found[2] is not None and found[2] <= now
    if guard.deadline != "any" and passed != (guard.deadline == "passed"):
        raise GuardFailed(f"suspension {guard.suspension_id!r} has {'' if passed else 'not '}expired")


def _project(connection: sqlite3.Connection, number: int, append: Append, change: RowChange) -> None:
    if isinstance(change, SuspensionOpened):
        question = change.question
        connection.execute(
            SQL["open_suspension"],
            (
                question.suspension_id,
                number,
                question.addressee,
                question.digest,
                append.recorded[0].at,
                question.expires_at,
                change.alarm_at,
            ),
        )
    elif isinstance(change, SuspensionRowRevised):
        question = change.question
        values = (question.digest, question.expires_at, change.alarm_at, question.suspension_id)
        connection.execute(SQL["revise_suspension"], values)
    elif isinstance(change, SuspensionRowReminded):
        connection.execute(SQL["remind_suspension"], (change.alarm_at, change.suspension_id))
    elif isinstance(change, SuspensionClosed):
        connection.execute(SQL["answer_suspension"], (change.status, change.suspension_id))
    elif isinstance(change, GrantUsed):
        sqlite_grants.use_grant(connection, change.grant_id)
    else:
        connection.execute(SQL["withdraw_suspensions"], (number,))


def _conflict(connection: sqlite3.Connection, append: Append) -> VersionConflict | LeaseLost:
    """Why a conditional update touched no row."""
    execution_id = append.execution.execution_id
    found = connection.execute(SQL["header"], (execution_id,)).fetchone()
    if found is None:
        return VersionConflict(f"execution {execution_id!r} does not exist")
    header, lease = _header(found), append.lease
    if lease is not None and (header.owner != lease.owner or header.fence != lease.fence):
        return LeaseLost(f"execution {execution_id!r} is owned by another process")
    if header.version != append.expected_version:
        return VersionConflict(f"execution {execution_id!r} has grown to version {header.version}")
    return LeaseLost(f"execution {execution_id!r} is owned by another process")


def _not_unique(append: Append, error: sqlite3.IntegrityError) -> ThreadBusy | VersionConflict:
    """Which of the two rules about executions that a unique index enforces was broken."""
    if "executions_of_thread" in str(error):
        return ThreadBusy(f"thread {append.execution.thread_id!r} has an unfinished execution")
    return VersionConflict(f"execution {append.execution.execution_id!r} exists already")


def _checksum(execution_id: str, first: int, at: float, body: str) -> int:
    return crc32(f"{execution_id} {first} {at!r} {body}".encode())


def _damaged(execution_id: str, how: str) -> StoreError:
    return StoreError(f"the log of execution {execution_id!r} is damaged: {how}; restore a backup")


def _prune(connection: sqlite3.Connection, before: float) -> int:
    numbers = connection.execute(SQL["prunable"], (before,)).fetchall()
    for name in ("prune_events", "prune_suspensions", "prune_artifacts", "prune_execution"):
        connection.executemany(SQL[name], numbers)
    return len(numbers)


def _header(row: tuple[Any, ...]) -> Header:
    execution_id, thread_id, principal, status, version, created_at, updated_at, owner, fence, leased_until = row
    if status not in TRANSITIONS or type(version) is not int:
        raise StoreError(f"the row of execution {execution_id!r} is damaged; restore a backup")
    return Header(
        execution_id=execution_id,
        thread_id=thread_id,
        principal=principal,
        status=status,
        version=version,
        created_at=created_at,
        updated_at=updated_at,
        owner=owner,
        fence=fence,
        leased_until=leased_until,
    )


def _suspension(row: tuple[Any, ...]) -> SuspensionRow:
    suspension_id, execution_id, thread_id, principal, addressee, status, digest, created_at, expires_at, alarm_at = row
    return SuspensionRow(
        suspension_id=suspension_id,
        execution_id=execution_id,
        thread_id=thread_id,
        principal=principal,
        addressee=addressee,
        status=status,
        digest=digest,
        created_at=created_at,
        expires_at=expires_at,
        alarm_at=alarm_at,
    )
