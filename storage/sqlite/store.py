"""The store on a SQLite file that several processes may share.

One connection writes (`writer.py`), another one looks things up (`reader.py`, `lookups.py`). Every law of the port is a
condition in SQL, checked inside the transaction that relies on it. The statements are in `statements.sql`, the schema
in `migrations/`.
"""

import json
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import anyio

from planwarden.agent.common.errors import LeaseLost, StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry, AuditRow, build_audit_entries, build_pruned_entry
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.grant import Grant
from planwarden.agent.ports.store import Append, Changes, Lease
from planwarden.storage.clock import LEASE_S, SystemClock
from planwarden.storage.codec import encode_events
from planwarden.storage.holdings import project_holdings
from planwarden.storage.locks import LivenessFile, WriteLock
from planwarden.storage.projection import project
from planwarden.storage.sql import grants as sql_grants
from planwarden.storage.sql import holdings as sql_holdings
from planwarden.storage.sql.audit import read_row
from planwarden.storage.sql.lookups import SqlLookups
from planwarden.storage.sql.notifications import SqlNotifications
from planwarden.storage.sql.rows import read_header
from planwarden.storage.sqlite import audit as sqlite_audit
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.append import PreparedAppend
from planwarden.storage.sqlite.reader import Reader
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.transaction import (
    OwnerLiveness,
    Owners,
    SqliteDatabase,
    SqliteReads,
    SqliteTransaction,
    SqliteWrites,
)
from planwarden.storage.sqlite.writer import Writer

# What else the file holds is imported when it is asked for: a command that decides waits for every import.
if TYPE_CHECKING:
    from planwarden.storage.ports.keys import KeyStore
    from planwarden.storage.ports.sessions import SessionStore
    from planwarden.storage.sql.schedules import SqlSchedules
    from planwarden.storage.sql.tokens import SqlTokens

LARGE_CHARS = 256 * 1024
"""Of the events of an append, from which on they are not written on the event loop's own thread."""


class SqliteStore(SqlLookups):
    """Open with `SqliteStore.open`, close when done."""

    def __init__(
        self,
        path: Path,
        writer: SqliteWrites,
        reader: SqliteReads,
        owners: Owners,
        clock: Clock,
        lease_s: float,
        *,
        lock: WriteLock | None = None,
    ) -> None:
        super().__init__(reader, clock)
        self.path = path
        self._writer = writer
        self._reader = reader
        self._owners = owners
        self._lock = lock
        self._lease_s = lease_s
        self._database = SqliteDatabase(writer, reader)
        self._notifications = SqlNotifications(self._database, clock)

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
                connection = _connect_and_migrate(path)
            try:
                lookups = database.connect(path, readonly=True)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            lock.close()
            raise
        check = database.FileIdentity(path).check
        writer = Writer(connection, path, check=check, lock=lock if database.needs_write_lock() else None)
        reader = Reader(lookups, path, check)
        owners = LivenessFile(path.parent / "owners")
        return cls(path, writer, reader, owners, clock or SystemClock(), lease_s, lock=lock)

    @property
    def tokens(self) -> "SqlTokens":
        from planwarden.storage.sql.tokens import SqlTokens

        return SqlTokens(self._database)

    @property
    def sessions(self) -> "SessionStore":
        """Codes and sessions of the inbox, in the same file."""
        from planwarden.storage.sql.sessions import SqlSessions

        return SqlSessions(self._database, OwnerLiveness(self._owners))

    @property
    def notifications(self) -> SqlNotifications:
        return self._notifications

    @property
    def schedules(self) -> "SqlSchedules":
        """Schedules of saved plans."""
        from planwarden.storage.sql.schedules import SqlSchedules

        return SqlSchedules(self._database, self._clock, OwnerLiveness(self._owners))

    @property
    def signing_keys(self) -> "KeyStore":
        """Keys with which people sign, in the same file."""
        from planwarden.storage.sql.keys import SqlKeys

        return SqlKeys(self._database)

    def append(self, append: Append) -> "CoroutineType[Any, Any, Lease | None]":
        # Not a coroutine of its own, which would be one more object for as long as the commit takes.
        if append.acquire:
            self._owners.announce(append.owner)
        body = encode_events([recorded.event for recorded in append.recorded])
        prepared = PreparedAppend(
            append,
            body,
            project(append),
            build_audit_entries(append.recorded, append.execution, append.policy),
            project_holdings(append),
            self._clock,
            self._lease_s,
        )
        return self._writer.run(prepared.write, is_large=bool(append.artifacts) or len(body) > LARGE_CHARS)

    async def claim(self, execution_id: str, owner: str, *, silent_s: float = 0.0) -> Lease | None:
        self._owners.announce(owner)

        def take(connection: sqlite3.Connection) -> Lease | None:
            held = connection.execute(SQL["header"], (execution_id,)).fetchone()
            until = self._leased_until()
            parameters = (owner, until, execution_id, self._clock.steady() - silent_s)
            found = connection.execute(SQL["claim"], parameters).fetchone()
            if found is None:
                return None
            before = read_header(held)
            left_s = until - before.leased_until if before.leased_until else None
            return Lease(execution_id, owner, int(found[0]), is_from_silent=before.owner is not None, left_s=left_s)

        await self.expire_dead()
        return await self._writer.run(take)

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        self._owners.announce(owner)
        chosen = (json.dumps([*skip]), limit)
        if not await self._reader.fetch("unowned", chosen):
            return ()

        def take(connection: sqlite3.Connection) -> tuple[Lease, ...]:
            found: list[tuple[str, float]] = connection.execute(SQL["unowned"], chosen).fetchall()
            until, steady = self._leased_until(), self._clock.steady()
            rows = [connection.execute(SQL["claim"], (owner, until, name, steady)).fetchone() for name, _ in found]
            return tuple(
                Lease(name, owner, int(row[0]), left_s=until - before if before else None)
                for (name, before), row in zip(found, rows, strict=True)
            )

        return await self._writer.run(take)

    async def orphans(self, limit: int, *, ahead_s: float = 0.0, after: str = "") -> tuple[str, ...]:
        await self.expire_dead()
        rows = await self._reader.fetch("orphans", (self._clock.steady() + ahead_s, after, limit))
        return tuple(row[0] for row in rows)

    async def expire_dead(self) -> None:
        owners = [str(row[0]) for row in await self._reader.fetch("owners")]
        dead = [owner for owner in owners if self._owners.is_dead(owner)]
        if dead:
            await self._writer.run(
                lambda connection: connection.executemany(SQL["expire_owner"], [(owner,) for owner in dead]).rowcount
            )

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        parameters = (self._leased_until(), owner, json.dumps([*execution_ids]))
        await self._writer.run(lambda connection: connection.execute(SQL["renew"], parameters).rowcount)

    async def confirm(self, lease: Lease) -> None:
        parameters = (lease.execution_id, lease.owner, lease.fence)
        if not await self._writer.run(
            lambda connection: connection.execute(SQL["confirm"], (self._leased_until(), *parameters)).rowcount
        ):
            raise LeaseLost(f"execution {lease.execution_id!r} is owned by another process")

    def _leased_until(self) -> float:
        return self._clock.steady() + self._lease_s

    async def release(self, lease: Lease) -> None:
        parameters = (lease.execution_id, lease.owner, lease.fence)
        await self._writer.run(lambda connection: connection.execute(SQL["release"], parameters).rowcount)

    async def changes(self, since: int) -> Changes:
        return Changes(self._writer.read_foreign_changes())

    async def wait_for_changes(self, since: int, timeout_s: float) -> None:
        await anyio.sleep(timeout_s)

    async def count_prunable(self, before: float) -> tuple[int, float | None]:
        """How many executions `prune` would delete, and when the oldest of them last changed."""
        [(count, oldest)] = await self._reader.fetch_long("count_prunable", (before,))
        return int(count), oldest

    async def prune(self, before: float) -> int:
        total = 0
        while True:
            pruned = await self._writer.run(
                lambda connection: _prune(connection, before, self._clock.now()), is_large=True
            )
            total += pruned
            if pruned == 0:
                return total

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        def add(transaction: SqliteTransaction) -> None:
            sql_grants.add_grant(transaction, grant)
            transaction.add_audit((entry,), self._clock.now())

        await self._database.write(add)

    async def revoke_grant(self, grant_id: str, entry: AuditEntry) -> bool:
        def revoke(transaction: SqliteTransaction) -> bool:
            now = self._clock.now()
            is_revoked = sql_grants.revoke_grant(transaction, grant_id, now)
            if is_revoked:
                transaction.add_audit((entry,), now)
            return is_revoked

        return await self._database.write(revoke)

    async def grants(self, *, only_open: bool, limit: int = 1000) -> tuple[Grant, ...]:
        open_at = self._clock.now() if only_open else None
        return tuple(map(sql_grants.read_grant, await self._reader.fetch("grants", (open_at, limit))))

    async def take_once(self, once: ev.OnceKey, holder: str, entry: AuditEntry) -> bool:
        def take(transaction: SqliteTransaction) -> bool:
            now = self._clock.now()
            is_taken = sql_holdings.take_key(transaction, once, holder, now)
            if is_taken:
                transaction.add_audit((entry,), now)
            return is_taken

        return await self._database.write(take)

    async def forget_once(self, key: str, entry: AuditEntry) -> bool:
        def forget(transaction: SqliteTransaction) -> bool:
            is_forgotten = sql_holdings.forget_key(transaction, key)
            if is_forgotten:
                transaction.add_audit((entry,), self._clock.now())
            return is_forgotten

        return await self._database.write(forget)

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        now = self._clock.now()
        await self._writer.run(lambda connection: sqlite_audit.add_entries(connection, entries, now))

    async def audit_rows(
        self, *, after: int = 0, execution_id: str | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        if execution_id is None:
            rows = await self._reader.fetch_long("audit_rows", (after, limit))
        else:
            rows = await self._reader.fetch_long("audit_rows_of", (execution_id, after, limit))
        return tuple(map(read_row, rows))

    async def task_rows(self, execution_id: str, *, after: int = 0, limit: int = 100) -> tuple[AuditRow, ...]:
        return tuple(map(read_row, await self._reader.fetch("task_rows", (execution_id, after, limit))))

    async def audit_end(self) -> int:
        return int((await self._reader.fetch("audit_end"))[0][0])

    async def backup(self, target: Path) -> None:
        """A consistent copy at `target` while others go on writing. Raises `StoreError` when it exists."""
        copy = database.open_copy(target)
        try:
            await self._reader.copy_into(copy)
        except StoreError:
            copy.close()
            await anyio.Path(target).unlink(missing_ok=True)
            raise
        copy.close()

    async def check(self) -> dict[str, int | str]:
        """Facts for a health report: `integrity` is `ok` or SQLite's first complaint; counts of rows; file version."""

        names = ("totals", "quick_check", "user_version")
        totals, integrity, schema = await self._reader.fetch_all_long(*((name, ()) for name in names))
        executions, running, pending = totals[0]
        return {
            "integrity": str(integrity[0][0]),
            "schema": int(schema[0][0]),
            "executions": int(executions),
            "running": int(running),
            "pending": int(pending),
            "size_bytes": self.path.stat().st_size,
        }

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._owners.retire()
        if self._lock is not None:
            self._lock.close()


def _connect_and_migrate(path: Path) -> sqlite3.Connection:
    connection = database.connect(path)
    try:
        database.migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prune(connection: sqlite3.Connection, before: float, now: float) -> int:
    found = connection.execute(SQL["prunable"], (before,)).fetchall()
    for name in (
        "prune_events",
        "prune_suspensions",
        "prune_artifacts",
        "prune_starts",
        "prune_synopses",
        "prune_execution",
    ):
        connection.executemany(SQL[name], [(number,) for number, _ in found])
    if found:
        sqlite_audit.add_entries(connection, (build_pruned_entry([name for _, name in found]),), now)
    return len(found)
