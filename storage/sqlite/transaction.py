"""The SQLite file as the modules of `planwarden.storage.sql` use it."""

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.execution.audit import GENESIS, AuditEntry, hash_row
from planwarden.storage.sql.database import Rows
from planwarden.storage.sql.lookups import Reads
from planwarden.storage.sqlite.statements import SQL


def _policy_entries(last_facts: object, policy: str) -> Iterable[AuditEntry]:
    """Yield the row that names the policy, unless the newest such row has the same facts.

    A digest is its own text in JSON.
    """
    if policy and last_facts != f'{{"digest":"{policy}"}}':
        yield AuditEntry(kind="policy", facts={"digest": policy})


class SqliteTransaction:
    """Implements `SqlTransaction` over a connection with an open one."""

    __slots__ = ("connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def execute(self, name: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        return self.connection.execute(SQL[name], parameters)

    def lock(self, name: str) -> None:
        """Nobody else writes while this transaction is open."""

    def add_audit(self, entries: Iterable[AuditEntry], at: float, policy: str = "") -> None:
        """Append to the chain; a policy that is not yet in it goes first."""
        row = self.execute("last_audit").fetchone()
        sequence, before, last_facts = (int(row[0]), bytes(row[1]), row[2]) if row is not None else (0, GENESIS, None)
        rows: list[tuple[Any, ...]] = []
        for entry in (*_policy_entries(last_facts, policy), *entries):
            sequence += 1
            facts = canonical_json(entry.facts)
            before = hash_row(before, sequence, at, entry, facts)
            rows.append((sequence, at, entry.kind, entry.execution_id, entry.suspension_id, facts, before))
        self.connection.executemany(SQL["add_audit"], rows)


Result = TypeVar("Result")
Operation = Callable[[SqliteTransaction], Result]

TICKER = "ticker-"
"""The beginning of the names of processes that start what is due."""


class SqliteReads(Reads, Protocol):
    """Reads of one SQLite database."""

    async def copy_into(self, target: sqlite3.Connection) -> None:
        """Copy the database as of one moment, while others go on writing."""
        ...


class SqliteWrites(Protocol):
    """Writes of one SQLite database."""

    async def run(self, operation: Operation[Result], *, is_large: bool = False) -> Result:
        """Return the operation's result once it is committed. Raises `StoreError` when the medium fails."""
        ...

    def read_foreign_changes(self) -> int:
        """Return a number that differs once somebody else has written."""
        ...

    async def close(self) -> None: ...


class Owners(Protocol):
    """The owners of executions, by name."""

    def announce(self, owner: str) -> None:
        """Record that `owner` lives in this process."""
        ...

    def is_dead(self, owner: str) -> bool:
        """Return True only when `owner` is certainly dead."""
        ...

    def is_anyone_alive(self, prefix: str) -> bool:
        """Return whether an owner whose name begins so lives."""
        ...

    def retire(self) -> None:
        """Forget the owners of this process."""
        ...


class SqliteDatabase:
    """Implements `Database` over the store's writer and reader."""

    def __init__(self, writer: SqliteWrites, reader: SqliteReads) -> None:
        self._writer = writer
        self._reader = reader

    async def write(self, operation: Operation[Result], *, is_large: bool = False) -> Result:
        return await self._writer.run(operation, is_large=is_large)

    async def execute(self, name: str, parameters: Sequence[object]) -> int:
        return await self._writer.run(lambda transaction: transaction.execute(name, parameters).rowcount)

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return await self._reader.fetch(name, parameters)


class OwnerLiveness:
    """Implements `Liveness` over the owners that are known here."""

    def __init__(self, owners: Owners, reads: Reads) -> None:
        self._owners = owners
        self._reads = reads
        self._ticker = f"{TICKER}{secrets.token_hex(8)}"

    async def announce(self, owner: str) -> None:
        self._owners.announce(owner)

    async def is_dead(self, owner: str) -> bool:
        return self._owners.is_dead(owner)

    async def find_dead(self) -> list[str]:
        return [str(owner) for (owner,) in await self._reads.fetch("owners") if self._owners.is_dead(owner)]

    async def attend(self) -> None:
        self._owners.announce(self._ticker)

    async def is_attended(self) -> bool:
        return self._owners.is_anyone_alive(TICKER)
