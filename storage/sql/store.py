"""What SQLite and PostgreSQL do alike: leases, grants, keys, the audit, pruning, records; `append.py` has the appends.

Each guarantee of the `Store` port is a condition in SQL, checked inside the transaction that relies on it.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import asdict

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import LeaseLost
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import AuditEntry, AuditRow
from planwarden.agent.ports.budgets_and_keys import Grant
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import Lease, SuspensionRow
from planwarden.storage.sql.budgets_and_keys import take_key
from planwarden.storage.sql.database import Database, Liveness, Reads, Rows, SqlTransaction, Writes
from planwarden.storage.sql.lookups import SqlLookups
from planwarden.storage.sql.notifications import NotificationQueue
from planwarden.storage.sql.rows import read_audit_row, read_grant, read_suspension

COUNTED = ("executions", "running", "pending")
"""What the columns of the statement `totals` count, in their order."""
PRUNED_TABLES = ("events", "suspensions", "artifacts", "starts", "synopses", "executions")


class SqlStore(SqlLookups, ABC):
    """The part of `CompleteStore` that only needs to run statements by name."""

    def __init__(self, reads: Reads, writes: Writes, clock: Clock, lease_s: float, *, liveness: Liveness) -> None:
        super().__init__(reads, clock)
        self._lease_s = lease_s
        self._liveness = liveness
        self._database = self.records = Database(reads, writes, clock, liveness)
        """The database, in which other modules store tokens, sessions, keys and schedules."""
        self.notifications = NotificationQueue(self._database)

    @abstractmethod
    def _find_times(self) -> tuple[float | None, float | None]:
        """Return wall-clock and steady time in seconds; None for both if the database uses its own clock."""

    def _notify_grant_change(self, transaction: SqlTransaction) -> None:
        """Tell other processes that grants changed; do nothing if the database lets them notice that by themselves."""

    async def due(self, limit: int) -> tuple[SuspensionRow, ...]:
        return tuple(map(read_suspension, await self._reads.fetch("due_suspensions", (self._find_times()[0], limit))))

    async def claim(self, execution_id: str, owner: str, *, silent_s: float = 0.0) -> Lease | None:
        await self._liveness.announce(owner)
        await self.expire_dead()

        def take(transaction: SqlTransaction) -> Lease | None:
            _, steady = self._find_times()
            row = transaction.execute("find_claimable", (execution_id, steady, silent_s)).fetchone()
            if row is None:
                return None
            number, former_owner, former_end = row
            [(fence, end)] = transaction.execute("claim", (owner, steady, self._lease_s, number)).fetchall()
            lease_age_s = end - former_end if former_end else None
            return Lease(execution_id, owner, int(fence), is_from_silent=former_owner is not None, silent_s=lease_age_s)

        return await self._database.write(take)

    async def orphans(self, limit: int, *, ahead_s: float = 0.0, after: str = "") -> tuple[str, ...]:
        await self.expire_dead()
        rows = await self._reads.fetch("orphans", (self._find_times()[1], ahead_s, after, limit))
        return tuple(row[0] for row in rows)

    async def expire_dead(self) -> None:
        dead = await self._liveness.find_dead()
        if dead:
            await self._database.write(
                lambda transaction: [transaction.execute("expire_owner", (name,)).rowcount for name in dead]
            )

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        names = json.dumps([*execution_ids])
        await self._database.execute("renew", (self._find_times()[1], self._lease_s, owner, names))

    async def confirm(self, lease: Lease) -> None:
        parameters = (self._find_times()[1], self._lease_s, lease.execution_id, lease.owner, lease.fence)
        if not await self._database.execute("confirm", parameters):
            raise LeaseLost(f"execution {lease.execution_id!r} is owned by another process")

    async def release(self, lease: Lease) -> None:
        await self._database.execute("release", (lease.execution_id, lease.owner, lease.fence))

    async def count_prunable(self, before: float) -> tuple[int, float | None]:
        """Return how many executions `prune` would delete, and when the oldest of them last changed."""
        [(count, oldest)] = await self._reads.fetch_long("count_prunable", (before,))
        return int(count), oldest

    async def prune(self, before: float) -> int:
        def delete(transaction: SqlTransaction) -> int:
            rows = transaction.execute("prunable", (before,)).fetchall()
            if rows:
                numbers = json.dumps([row[0] for row in rows])
                for table in PRUNED_TABLES:
                    transaction.execute(f"prune_{table}", (numbers,))
                entry = AuditEntry(kind="pruned", facts={"executions": [row[1] for row in rows]})
                transaction.add_audit((entry,), self.clock.now())
            return len(rows)

        total = 0
        while pruned := await self._database.write(delete, is_large=True):
            total += pruned
        return total

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        fields = asdict(grant)
        for name in ("arguments", "free", "step"):
            fields[name] = None if fields[name] is None else canonical_json(msgspec.to_builtins(fields[name]))

        def add(transaction: SqlTransaction) -> bool:
            self._notify_grant_change(transaction)
            return transaction.execute("add_grant", [*fields.values()]).rowcount == 1

        await self._database.write(add, entry)

    async def revoke_grant(self, grant_id: str, entry: AuditEntry) -> bool:
        def revoke(transaction: SqlTransaction) -> bool:
            is_revoked = transaction.execute("revoke_grant", (self.clock.now(), grant_id)).rowcount == 1
            if is_revoked:
                self._notify_grant_change(transaction)
            return is_revoked

        return await self._database.write(revoke, entry)

    async def grants(self, *, only_open: bool, limit: int = 1000) -> tuple[Grant, ...]:
        open_at = self.clock.now() if only_open else None
        return tuple(filter(None, map(read_grant, await self._reads.fetch("grants", (open_at, limit)))))

    async def take_once_key(self, once_key: ev.OnceKey, holder: str, entry: AuditEntry) -> bool:
        return await self._database.write(
            lambda transaction: take_key(transaction, once_key, holder, self.clock.now()), entry
        )

    async def forget_once_key(self, key: str, entry: AuditEntry) -> bool:
        return await self._database.write(
            lambda transaction: transaction.execute("forget_once_key", (key,)).rowcount == 1, entry
        )

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        now = self.clock.now()
        await self._database.write(lambda transaction: transaction.add_audit(entries, now))

    async def audit_rows(
        self, *, after: int = 0, execution_id: str | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        if execution_id is None:
            rows = await self._read_audit("audit_rows", (after, limit))
        else:
            rows = await self._read_audit("audit_rows_of", (execution_id, after, limit))
        return tuple(map(read_audit_row, rows))

    async def task_rows(self, execution_id: str, *, after: int = 0, limit: int = 100) -> tuple[AuditRow, ...]:
        return tuple(map(read_audit_row, await self._read_audit("task_rows", (execution_id, after, limit))))

    async def audit_end(self) -> int:
        return int((await self._read_audit("audit_end"))[0][0])

    async def _read_audit(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        """Return what the statement `name` reads from the audit; rows committed before the call are visible to it."""
        return await self._reads.fetch(name, parameters)
