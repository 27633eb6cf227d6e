"""The store on PostgreSQL.

Conditions use the database's time, so that the clocks of the machines do not matter.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic

import anyio
import anyio.to_thread
import psycopg

from planwarden.agent.common.errors import StoreError
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import Append, Changes, Lease
from planwarden.storage.clock import LEASE_S
from planwarden.storage.postgres.connection import (
    Connection,
    connect,
    migrate,
    name_server,
    refuse_pooler,
    run,
    to_store_error,
)
from planwarden.storage.postgres.control_connection import CHANNEL, Control, seal, send_hint
from planwarden.storage.postgres.hints import EVERYTHING, Hints, write_hint
from planwarden.storage.postgres.reader import PostgresReader
from planwarden.storage.postgres.writer import PostgresWriter
from planwarden.storage.sql.append import prepare
from planwarden.storage.sql.database import Rows, SqlTransaction
from planwarden.storage.sql.processes import ProcessRegistry
from planwarden.storage.sql.store import COUNTED, SqlStore

GONE_S = 1.5
"""A process counts as dead when its lock has been free for this many seconds."""
RESTARTED_S = 12.0
"""Replaces `GONE_S` if the database may have lost the lock: a living process takes the lock again sooner than this."""


class LockLiveness:
    """Implements `Liveness`."""

    def __init__(self, control: Control, reader: PostgresReader, gone_s: float) -> None:
        self._control = control
        self._reader = reader
        self._gone_s = gone_s
        self._free_since: dict[str, float] = {}

    async def announce(self, owner: str) -> None:
        if not self._control.is_announced(owner):
            await anyio.to_thread.run_sync(self._control.announce, owner)

    async def is_dead(self, owner: str) -> bool:
        return owner in await self.find_dead([owner])

    async def find_dead(self, owners: Collection[str] | None = None) -> list[str]:
        """Return the owners whose processes are gone, among `owners` or, if it is None, among all that have a lease."""
        rows = await self._reader.fetch("living", (None if owners is None else [*owners],))
        now = monotonic()
        is_shaken = now - self._control.reconnected_at < RESTARTED_S
        return [
            str(owner) for owner, *facts in rows if self._counts_as_dead(owner, *facts, now=now, is_shaken=is_shaken)
        ]

    async def announce_scheduler(self) -> None:
        """Do nothing: every process in the registry starts schedules that are due."""

    async def has_scheduler(self) -> bool:
        return bool(await self._reader.fetch("processes"))

    def _counts_as_dead(
        self, owner: str, is_announced: bool, is_free: bool, predates_restart: bool, /, *, now: float, is_shaken: bool
    ) -> bool:
        if not is_announced:
            # A process deletes its row when it ends.
            return True
        if not is_free:
            self._free_since.pop(owner, None)
            return False
        patience_s = RESTARTED_S if is_shaken or predates_restart else self._gone_s
        return now - self._free_since.setdefault(owner, now) >= patience_s


class PostgresStore(SqlStore):
    """Open with `PostgresStore.open`, close when done."""

    def __init__(
        self,
        url: str,
        control: Control,
        hints: Hints,
        clock: Clock | None,
        lease_s: float,
        gone_s: float,
        *,
        is_pooled: bool,
    ) -> None:
        """`control` must have started, and its thread must add to `hints`."""
        self.url = url
        self._hints = hints
        self._control = control
        self._given_clock = clock
        self._reader = PostgresReader(url)
        self._writer = PostgresWriter(
            url,
            times=self._find_times,
            lease_s=lease_s,
            committed=lambda connection, executions: send_hint(connection, self._control.name, executions),
            prepares=not is_pooled,
        )
        liveness = LockLiveness(control, self._reader, gone_s)
        super().__init__(self._reader, self._writer, clock or control, lease_s, liveness=liveness)
        self.processes = ProcessRegistry(self._database)
        """The processes that share the database."""

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
        """Connect, and bring the schema up to date. If `url` leads to a pooler, `control_url` must lead past it.

        `clock`, which only tests pass, replaces the database's time.

        Raises:
            StoreError: the database cannot be reached or must not be used.
        """
        direct_url = control_url or url
        try:
            with ExitStack() as opened:
                connection = opened.enter_context(closing(connect(direct_url)))
                if not control_url:
                    refuse_pooler(connection, url)
                migrate(connection, url)
                hints = Hints()
                control = Control(direct_url, hints.add)
                opened.callback(control.stop)
                control.start(connection)
                opened.pop_all()
        except psycopg.Error as error:
            raise to_store_error(error, direct_url) from error
        return cls(url, control, hints, clock, lease_s, gone_s, is_pooled=bool(control_url))

    async def append(self, append: Append) -> Lease | None:
        if append.acquire:
            await self._liveness.announce(append.owner)
        # Others may take a running execution if the writer gives up its lease or never had one.
        has_lease = append.lease is not None or append.acquire
        is_unowned = append.execution.status == "running" and (append.release or not has_lease)
        hint = write_hint(append.execution.execution_id, is_unowned=is_unowned)
        return await self._writer.append(prepare(append), hint)

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        await self._liveness.announce(owner)
        # The reader runs this: the statement need not wait for the writer's commits, and often finds nothing to write.
        # After a lost answer, the statement runs again and finds other executions; leases taken unknowingly run out.
        rows = await self._reader.fetch("claim_many", (owner, self._find_times()[1], self._lease_s, [*skip], limit))
        rows.sort(key=lambda row: row[2])
        return tuple(Lease(str(row[0]), owner, int(row[1]), silent_s=row[3]) for row in rows)

    def _find_times(self) -> tuple[float | None, float | None]:
        """Return the given clock's time and steady seconds; (None, None) without one: the database uses its own."""
        return (None, None) if self._given_clock is None else (self._given_clock.now(), self._given_clock.steady())

    async def changes(self, since: int) -> Changes:
        return self._hints.read(since)

    async def wait_for_changes(self, since: int, timeout_s: float) -> None:
        await self._hints.wait(since, timeout_s)

    def _notify_grant_change(self, transaction: SqlTransaction) -> None:
        # Grants change so rarely that this hint may be part of the transaction, although the hint slows that down.
        transaction.execute("hint", (CHANNEL, f"{self._control.name}\n{EVERYTHING}"))

    async def _read_audit(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        def read(connection: Connection) -> Rows:
            seal(connection)
            return run(connection, name, parameters).fetchall()

        return await self._reader.use(read)

    async def backup(self, target: Path) -> None:
        """Raise `StoreError`, whose message names PostgreSQL's own tools for backups."""
        raise StoreError(f"{name_server(self.url)} is backed up with pg_dump or pg_basebackup; nothing was written")

    async def check(self) -> dict[str, int | str]:
        """Return facts for a health report: row counts, size, versions, commit time, unsealed audit rows, leases.

        Raises `StoreError` also when a row of the audit cannot be sealed.
        """
        [totals] = await self._reader.fetch("totals")
        server = await self._reader.use(lambda connection: connection.info.server_version)
        [(size_bytes, schema, unsealed, unsealed_s, leases, expired)] = await self._reader.fetch("load")
        began = anyio.current_time()
        await self._database.execute("probe", ())
        commit_ms = round((anyio.current_time() - began) * 1000)
        await self._reader.use(seal)
        return {
            "integrity": "ok",
            "schema": int(schema),
            **dict(zip(COUNTED, map(int, totals), strict=True)),
            "size_bytes": int(size_bytes),
            "server": f"{server // 10_000}.{server % 10_000}",
            "commit_ms": commit_ms,
            "unsealed": int(unsealed),
            "unsealed_ms": round(unsealed_s * 1000),
            "leases": int(leases),
            "expired_leases": int(expired),
        }

    async def close(self) -> None:
        await self._writer.close()
        await self._reader.close()
        await anyio.to_thread.run_sync(self._control.stop)
