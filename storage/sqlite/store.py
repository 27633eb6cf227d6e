"""The store on a SQLite file that several processes may share, and the store in memory.

One connection writes (`writer.py`), another one looks things up (`reader.py`).
"""

import json
import secrets
import sqlite3
import weakref
from collections.abc import Collection
from contextlib import ExitStack, closing
from pathlib import Path

import anyio

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import Append, Changes, Lease
from planwarden.storage.clock import LEASE_S, SystemClock
from planwarden.storage.locks import LivenessFile, OneProcess, WriteLock
from planwarden.storage.sql.append import prepare, write_appends
from planwarden.storage.sql.database import Reads, SqlTransaction
from planwarden.storage.sql.store import COUNTED, SqlStore
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.database import migrate
from planwarden.storage.sqlite.reader import DirectReader, Reader
from planwarden.storage.sqlite.writer import MemoryWriter, Writer

LARGE_CHARS = 256 * 1024
"""The most characters that an append's events may have if the event loop's own thread is to write them."""
TICKER = "ticker-"
"""The prefix of the names under which processes that start due schedules announce themselves."""


class OwnerLiveness:
    """Implements `Liveness` for owners on this machine, or, for a store in memory, in this process."""

    def __init__(self, owners: LivenessFile | OneProcess, reads: Reads) -> None:
        self._owners = owners
        self._reads = reads
        self._ticker = f"{TICKER}{secrets.token_hex(8)}"

    async def announce(self, owner: str) -> None:
        self._owners.announce(owner)

    async def is_dead(self, owner: str) -> bool:
        return self._owners.is_dead(owner)

    async def find_dead(self) -> list[str]:
        return [str(owner) for (owner,) in await self._reads.fetch("owners") if self._owners.is_dead(owner)]

    async def announce_scheduler(self) -> None:
        self._owners.announce(self._ticker)

    async def has_scheduler(self) -> bool:
        return self._owners.is_anyone_alive(TICKER)


class SqliteStore(SqlStore):
    """Open with `SqliteStore.open`, close when done."""

    def __init__(
        self,
        path: Path,
        writer: Writer | MemoryWriter,
        reader: Reader | DirectReader,
        owners: LivenessFile | OneProcess,
        clock: Clock,
        lease_s: float,
        *,
        lock: WriteLock | None = None,
    ) -> None:
        super().__init__(reader, writer, clock, lease_s, liveness=OwnerLiveness(owners, reader))
        self.path = path
        self._writer = writer
        self._reader = reader
        self._owners = owners
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, clock: Clock | None = None, lease_s: float = LEASE_S) -> "SqliteStore":
        """Create or open the file at `path` and bring its schema up to date.

        Raises:
            StoreError: the file must not or cannot be used; it was left as it was.
        """
        database.prepare(path)
        with ExitStack() as opened:
            lock = opened.enter_context(closing(WriteLock(path.with_name(path.name + ".lock"))))
            # Switching to write-ahead logging ignores the busy time-out, so processes that open the file take turns.
            with lock.held():
                connection = opened.enter_context(closing(_connect_and_migrate(path)))
            lookups = database.connect(path, readonly=True)
            opened.pop_all()
        check = database.FileIdentity(path).check
        writer = Writer(connection, path, check=check, lock=lock if database.needs_write_lock() else None)
        reader = Reader(lookups, path, check)
        owners = LivenessFile(path.parent / "owners")
        return cls(path, writer, reader, owners, clock or SystemClock(), lease_s, lock=lock)

    async def append(self, append: Append) -> Lease | None:
        if append.acquire:
            self._owners.announce(append.owner)
        prepared = prepare(append)

        def write(transaction: SqlTransaction) -> Lease | None:
            [outcome] = write_appends(transaction, [prepared], self._find_times(), self._lease_s)
            if isinstance(outcome, PlanwardenError):
                raise outcome
            return outcome

        is_large = bool(append.artifacts) or len(prepared.body) > LARGE_CHARS
        return await self._writer.run(write, is_large=is_large)

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        self._owners.announce(owner)
        parameters = (json.dumps([*skip]), limit)
        if not await self._reader.fetch("unowned", parameters):
            return ()

        def take(transaction: SqlTransaction) -> tuple[Lease, ...]:
            leases: list[Lease] = []
            for number, execution_id, former_end in transaction.execute("unowned", parameters).fetchall():
                values = (owner, self.clock.steady(), self._lease_s, number)
                [(fence, end)] = transaction.execute("claim", values).fetchall()
                leases.append(Lease(execution_id, owner, fence, silent_s=end - former_end if former_end else None))
            return tuple(leases)

        return await self._database.write(take)

    def _find_times(self) -> tuple[float, float]:
        return self.clock.now(), self.clock.steady()

    async def changes(self, since: int) -> Changes:
        return Changes(self._writer.read_foreign_changes())

    async def wait_for_changes(self, since: int, timeout_s: float) -> None:
        await anyio.sleep(timeout_s)

    async def backup(self, target: Path) -> None:
        """Write a consistent copy at `target` while others go on writing. Raise `StoreError` if `target` exists."""
        copy = database.open_copy(target)
        try:
            await self._reader.copy_into(copy)
        # This also catches a cancellation: half a copy would be in the way of the next backup.
        except BaseException:
            copy.close()
            with anyio.CancelScope(shield=True):
                await anyio.Path(target).unlink(missing_ok=True)
            raise
        copy.close()

    async def check(self) -> dict[str, int | str]:
        """Return facts for a health report: `integrity` (`ok`, or SQLite's first complaint), counts, version, size."""
        names = ("totals", "quick_check", "size")
        totals, integrity, sizes = await self._reader.fetch_all_long(*((name, ()) for name in names))
        schema, size_bytes = sizes[0]
        counts = dict(zip(COUNTED, map(int, totals[0]), strict=True))
        return {"integrity": str(integrity[0][0]), "schema": int(schema), **counts, "size_bytes": int(size_bytes)}

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._owners.retire()
        if self._lock is not None:
            self._lock.close()


def _connect_and_migrate(path: Path) -> sqlite3.Connection:
    with ExitStack() as opened:
        connection = opened.enter_context(closing(database.connect(path)))
        database.migrate(connection, path)
        opened.pop_all()
    return connection


PLACE = Path(":memory:")


class MemoryStore(SqliteStore):
    """Gives every guarantee of the ports except durability.

    Several engines may share one instance, as processes share a file, but all must use it from the same event loop.
    """

    def __init__(self, clock: Clock | None = None, *, lease_s: float = LEASE_S) -> None:
        connection = sqlite3.connect(PLACE, isolation_level=None, check_same_thread=False, cached_statements=256)
        weakref.finalize(self, connection.close)
        migrate(connection, PLACE)
        reader = DirectReader(connection, PLACE)
        super().__init__(PLACE, MemoryWriter(connection, PLACE), reader, OneProcess(), clock or SystemClock(), lease_s)

    async def close(self) -> None:
        """Close nothing: the content stays for the next user of the instance."""
