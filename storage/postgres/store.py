"""The store on PostgreSQL.

Every law of the port is a condition in SQL, checked in the transaction that relies on it; an append is the function
`append_all` of `migrations/`. Times in conditions are the database's, so that the clocks of machines do not matter.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg

from planwarden.agent.common.errors import LeaseLost, StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry, AuditRow, build_pruned_entry
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.grant import Grant
from planwarden.agent.ports.store import (
    Append,
    Changes,
    Lease,
    SuspensionRow,
)
from planwarden.storage.clock import LEASE_S
from planwarden.storage.ports.keys import KeyStore
from planwarden.storage.ports.sessions import SessionStore
from planwarden.storage.postgres.append import encode_append, read_outcome
from planwarden.storage.postgres.audit import seal
from planwarden.storage.postgres.connection import (
    Connection,
    connect,
    migrate,
    name_server,
    refuse_pooler,
    run,
    store_error,
)
from planwarden.storage.postgres.control import CHANNEL, Control, send_hint
from planwarden.storage.postgres.hints import EVERYTHING, Hints, write_hint
from planwarden.storage.postgres.liveness import GONE_S, LockLiveness
from planwarden.storage.postgres.processes import PostgresProcesses
from planwarden.storage.postgres.reader import PostgresReader
from planwarden.storage.postgres.transaction import PostgresTransaction
from planwarden.storage.postgres.writer import AppendRequest, Operation, PostgresWriter, Result
from planwarden.storage.sql import grants as sql_grants
from planwarden.storage.sql import holdings as sql_holdings
from planwarden.storage.sql.audit import read_row
from planwarden.storage.sql.database import Rows
from planwarden.storage.sql.keys import SqlKeys
from planwarden.storage.sql.lookups import SqlLookups
from planwarden.storage.sql.notifications import SqlNotifications, limit_notifications
from planwarden.storage.sql.rows import read_suspension
from planwarden.storage.sql.schedules import SqlSchedules
from planwarden.storage.sql.secrets import SqlSecrets
from planwarden.storage.sql.sessions import SqlSessions
from planwarden.storage.sql.tokens import SqlTokens


class DatabaseClock:
    """The database's time as this process knows it; leases run by it as well."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def now(self) -> float:
        return self._control.now()

    def steady(self) -> float:
        return self._control.now()


class PostgresDatabase:
    """Implements `Database`."""

    def __init__(self, writer: PostgresWriter, reader: PostgresReader) -> None:
        self._writer = writer
        self._reader = reader

    async def write(self, operation: Operation[Result]) -> Result:
        return await self._writer.run(operation)

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return await self._reader.fetch(name, parameters)


class PostgresStore(SqlLookups):
    """Open with `PostgresStore.open`, close when done."""

    def __init__(
        self, url: str, control: Control, hints: Hints, clock: Clock | None, lease_s: float, gone_s: float
    ) -> None:
        """`control` has started, and adds to `hints`."""
        self.url = url
        self._lease_s = lease_s
        self._hints = hints
        self._control = control
        self._given = clock
        self._reader = PostgresReader(url)
        super().__init__(self._reader, clock or DatabaseClock(self._control))
        self._writer = PostgresWriter(
            url,
            clock=self._find_times,
            lease_s=lease_s,
            limit_notifications=lambda transaction: limit_notifications(transaction, self._clock.now()),
            committed=lambda connection, executions: send_hint(connection, self._control.name, executions),
        )
        self._liveness = LockLiveness(self._control, self._reader, gone_s)
        self._database = PostgresDatabase(self._writer, self._reader)
        self._processes = PostgresProcesses(self._database, self._liveness)
        self._tokens = SqlTokens(self._database)
        self._sessions = SqlSessions(self._database, self._liveness)
        self._notifications = SqlNotifications(self._database, self._clock)
        self._keys = SqlKeys(self._database)
        self._schedules = SqlSchedules(self._database, self._clock, self._processes)
        self._secrets = SqlSecrets(self._database)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        control_url: str = "",
        clock: Clock | None = None,
        lease_s: float = LEASE_S,
        gone_s: float = GONE_S,
    ) -> "PostgresStore":
        """Connect, and bring the schema up to date. Where `url` leads to a pooler, `control_url` leads past it.

        With `clock`, which only tests give, it is the store's time.

        Raises:
            StoreError: the database cannot be reached or must not be used.
        """
        try:
            connection = connect(control_url or url)
        except psycopg.Error as error:
            raise store_error(error, control_url or url) from error
        try:
            if not control_url:
                refuse_pooler(connection, url)
            migrate(connection, url)
            hints = Hints()
            control = Control(control_url or url, hints.add)
            try:
                control.start(connection)
            except BaseException:
                control.stop()
                raise
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise store_error(error, url) from error
            raise
        return cls(url, control, hints, clock, lease_s, gone_s)

    @property
    def tokens(self) -> SqlTokens:
        return self._tokens

    @property
    def processes(self) -> PostgresProcesses:
        """The processes that share the database."""
        return self._processes

    @property
    def secrets(self) -> SqlSecrets:
        """Sealed; `planwarden.storage.sealing` opens them."""
        return self._secrets

    @property
    def sessions(self) -> SessionStore:
        """Codes and sessions of the inbox."""
        return self._sessions

    @property
    def notifications(self) -> SqlNotifications:
        return self._notifications

    @property
    def schedules(self) -> SqlSchedules:
        """Schedules of saved plans."""
        return self._schedules

    @property
    def signing_keys(self) -> KeyStore:
        """Keys with which people sign."""
        return self._keys

    async def append(self, append: Append) -> Lease | None:
        if append.acquire:
            await self._liveness.announce(append.owner)
        try:
            text = encode_append(append)
        except UnicodeEncodeError as error:
            raise store_error(error, self.url) from error
        # What still runs is for others to take when the writer gives it up, or never had it.
        has_lease = append.lease is not None or append.acquire
        is_unowned = append.execution.status == "running" and (append.release or not has_lease)
        hint = write_hint(append.execution.execution_id, is_unowned=is_unowned)
        request = AppendRequest(text, hint, is_notifying=bool(append.notifications))
        return read_outcome(append, *await self._writer.append(request))

    async def due(self, limit: int) -> tuple[SuspensionRow, ...]:
        return tuple(map(read_suspension, await self._reader.fetch("due_suspensions", (self._find_times()[0], limit))))

    async def claim(self, execution_id: str, owner: str, *, silent_s: float = 0.0) -> Lease | None:
        await self._liveness.announce(owner)
        await self.expire_dead()
        parameters = (owner, execution_id, self._find_times()[1], self._lease_s, silent_s)
        found = (await self._writer.execute("claim", parameters)).fetchone()
        if found is None:
            return None
        return Lease(execution_id, owner, int(found[0]), is_from_silent=found[1], left_s=found[2])

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        await self._liveness.announce(owner)
        # Not behind the writer's commits, and no write at all where nothing is found. Repeated after a lost answer, it
        # finds others: what this process took without knowing runs out.
        rows = await self._reader.fetch("claim_many", (owner, self._find_times()[1], self._lease_s, [*skip], limit))
        rows.sort(key=lambda row: row[2])
        return tuple(Lease(str(row[0]), owner, int(row[1]), left_s=row[3]) for row in rows)

    async def orphans(self, limit: int, *, ahead_s: float = 0.0, after: str = "") -> tuple[str, ...]:
        await self.expire_dead()
        rows = await self._reader.fetch("orphans", (self._find_times()[1], ahead_s, after, limit))
        return tuple(row[0] for row in rows)

    async def expire_dead(self) -> None:
        dead = await self._liveness.find_dead()
        if dead:
            await self._writer.run(lambda transaction: [transaction.execute("expire_owner", (name,)) for name in dead])

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        parameters = (self._find_times()[1], self._lease_s, owner, [*execution_ids])
        await self._writer.execute("renew", parameters)

    async def confirm(self, lease: Lease) -> None:
        parameters = (self._find_times()[1], self._lease_s, lease.execution_id, lease.owner, lease.fence)
        if not (await self._writer.execute("confirm", parameters)).rowcount:
            raise LeaseLost(f"execution {lease.execution_id!r} is owned by another process")

    async def release(self, lease: Lease) -> None:
        parameters = (lease.execution_id, lease.owner, lease.fence)
        await self._writer.execute("release", parameters)

    def _find_times(self) -> tuple[float | None, float | None]:
        """Now and steady seconds where a clock was given; else the database's own are used."""
        return (None, None) if self._given is None else (self._given.now(), self._given.steady())

    async def changes(self, since: int) -> Changes:
        return self._hints.read(since)

    async def wait_for_changes(self, since: int, timeout_s: float) -> None:
        await self._hints.wait(since, timeout_s)

    async def count_prunable(self, before: float) -> tuple[int, float | None]:
        """How many executions `prune` would delete, and when the oldest of them last changed."""
        [(count, oldest)] = await self._reader.fetch("count_prunable", (before,))
        return int(count), oldest

    async def prune(self, before: float) -> int:
        total = 0
        while pruned := await self._writer.run(lambda transaction: _prune(transaction, before, self._clock.now())):
            total += pruned
        return total

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        def add(transaction: PostgresTransaction) -> None:
            sql_grants.add_grant(transaction, grant)
            transaction.add_audit((entry,), self._clock.now())
            self._hint_everything(transaction)

        await self._writer.run(add)

    async def revoke_grant(self, grant_id: str, entry: AuditEntry) -> bool:
        def revoke(transaction: PostgresTransaction) -> bool:
            now = self._clock.now()
            is_revoked = sql_grants.revoke_grant(transaction, grant_id, now)
            if is_revoked:
                transaction.add_audit((entry,), now)
                self._hint_everything(transaction)
            return is_revoked

        return await self._writer.run(revoke)

    def _hint_everything(self, transaction: PostgresTransaction) -> None:
        """Other processes read their copy of the grants again. Few enough to belong to the transaction."""
        transaction.execute("hint", (CHANNEL, f"{self._control.name}\n{EVERYTHING}"))

    async def grants(self, *, only_open: bool, limit: int = 1000) -> tuple[Grant, ...]:
        open_at = self._clock.now() if only_open else None
        return tuple(map(sql_grants.read_grant, await self._reader.fetch("grants", (open_at, limit))))

    async def take_once(self, once: ev.OnceKey, holder: str, entry: AuditEntry) -> bool:
        def take(transaction: PostgresTransaction) -> bool:
            now = self._clock.now()
            is_taken = sql_holdings.take_key(transaction, once, holder, now)
            if is_taken:
                transaction.add_audit((entry,), now)
            return is_taken

        return await self._writer.run(take)

    async def forget_once(self, key: str, entry: AuditEntry) -> bool:
        def forget(transaction: PostgresTransaction) -> bool:
            is_forgotten = sql_holdings.forget_key(transaction, key)
            if is_forgotten:
                transaction.add_audit((entry,), self._clock.now())
            return is_forgotten

        return await self._writer.run(forget)

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        now = self._clock.now()
        await self._writer.run(lambda transaction: transaction.add_audit(entries, now))

    async def audit_rows(
        self, *, after: int = 0, execution_id: str | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        if execution_id is None:
            rows = await self._read_sealed("audit_rows", (after, limit))
        else:
            rows = await self._read_sealed("audit_rows_of", (execution_id, after, limit))
        return tuple(map(read_row, rows))

    async def task_rows(self, execution_id: str, *, after: int = 0, limit: int = 100) -> tuple[AuditRow, ...]:
        return tuple(map(read_row, await self._read_sealed("task_rows", (execution_id, after, limit))))

    async def audit_end(self) -> int:
        return int((await self._read_sealed("audit_end", ()))[0][0])

    async def _read_sealed(self, name: str, parameters: Sequence[object]) -> Rows:
        """What was committed before belongs to the answer."""

        def read(connection: Connection) -> Rows:
            seal(connection)
            return run(connection, name, parameters).fetchall()

        return await self._reader.use(read)

    async def backup(self, target: Path) -> None:
        """PostgreSQL has tools of its own for this. Raises `StoreError`, which names them."""
        raise StoreError(f"{name_server(self.url)} is backed up with pg_dump or pg_basebackup; nothing was written")

    async def check(self) -> dict[str, int | str]:
        """Facts for a health report: counts of rows, size, version of server and schema, and what waits."""
        executions, running, pending, size_bytes, schema = (await self._reader.fetch("totals"))[0]
        server = await self._reader.use(lambda connection: connection.info.server_version)
        [(unsealed, unsealed_s, leases, expired)] = await self._reader.fetch("load")
        began = anyio.current_time()
        await self._writer.run(lambda transaction: transaction.execute("probe").rowcount)
        return {
            "integrity": "ok",
            "schema": int(schema),
            "executions": int(executions),
            "running": int(running),
            "pending": int(pending),
            "size_bytes": int(size_bytes),
            "server": f"{server // 10_000}.{server % 10_000}",
            "commit_ms": round((anyio.current_time() - began) * 1000),
            "unsealed": int(unsealed),
            "unsealed_ms": round(unsealed_s * 1000),
            "leases": int(leases),
            "expired_leases": int(expired),
        }

    async def close(self) -> None:
        await self._writer.close()
        await self._reader.close()
        await anyio.to_thread.run_sync(self._control.stop)


def _prune(transaction: PostgresTransaction, before: float, now: float) -> int:
    found = transaction.execute("prunable", (before,)).fetchall()
    numbers = [row[0] for row in found]
    if numbers:
        for table in ("events", "suspensions", "artifacts", "starts", "synopses", "executions"):
            transaction.execute(f"prune_{table}", (numbers,))
        transaction.add_audit((build_pruned_entry([row[1] for row in found]),), now)
    return len(found)
