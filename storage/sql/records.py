"""The table `records`, which holds everything small that a store keeps in addition to executions.

Each kind of record is a class in the module that has the rules of the kind. Stored rows are hostile input: one that
does not fit raises `StoreError` and never becomes a half-built value.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.agent.common.struct import plain_value
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.storage.sql.database import Database, Rows, SqlTransaction
from planwarden.storage.sql.rows import read_object

LOCAL_KINDS = ("gate", "inbox", "secret", "secret_lock")
"""Kinds that `planwarden move` leaves behind: they describe running processes, or are sealed for one store."""


class Columns(NamedTuple):
    """How a kind is stored: its name, and the fields with a column of their own. The row's JSON holds the others."""

    kind: str
    id: str
    owner: str = ""
    """The field that names the owner; empty for a kind whose records have no owner."""
    remedy: str = "restore a backup"
    """What a person does about a damaged row."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one row holds."""

    columns: ClassVar[Columns]
    version: int = 1
    """The number of this state of the record; it grows by one with each change."""

    @property
    def due_at(self) -> float | None:
        """When the record is deleted or has to be looked at, in Unix seconds by the store's clock."""
        return None


class ExpiringRecord(Record, frozen=True, kw_only=True):
    """A record that is void from `expires_at` on."""

    expires_at: float

    @property
    def due_at(self) -> float:
        return self.expires_at


R = TypeVar("R", bound=Record)
Result = TypeVar("Result")


class RecordTransaction:
    """An open transaction. An operation that refuses must have written nothing."""

    def __init__(self, transaction: SqlTransaction) -> None:
        self._execute = transaction.execute
        self.add_audit = transaction.add_audit

    def find(self, kind: type[R], record_id: str, now: float = -math.inf) -> R | None:
        """Return the record; None when there is none, or when it is due. Raises `StoreError` when it is damaged."""
        return _read_one(kind, self._execute("find_record", (kind.columns.kind, record_id)).fetchall(), now)

    def all(self, kind: type[R], owner: str | None = None) -> list[R]:
        """Return the records of one owner or of all, oldest first. Raises `StoreError` when one is damaged."""
        return [_read_record(kind, row) for row in self._execute(*_select_all(kind, owner)).fetchall()]

    def insert(self, record: Record) -> bool:
        """Store a new record. Return False, and keep the stored record, when the id is taken."""
        return self._execute("add_record", _build_row(record)).rowcount == 1

    def put(self, record: Record) -> bool:
        """Store the record; replace any record with the same id."""
        return self._execute("put_record", _build_row(record)).rowcount == 1

    def change(self, record: Record) -> bool:
        """Store the record and add one to its version, but only if the stored record still has the same version."""
        return self._execute("change_record", (*_build_row(record), record.version)).rowcount == 1

    def delete(self, kind: type[Record], record_id: str) -> bool:
        """Delete a record, damaged or not; False when there is none."""
        return self._execute("delete_record", (kind.columns.kind, record_id)).rowcount == 1

    def delete_due(self, kind: type[Record], now: float) -> int:
        """Delete the records that are due; return their number."""
        return self._execute("delete_due_records", (kind.columns.kind, now)).rowcount


@runtime_checkable
class HasRecords(Protocol):
    """A store that also stores records."""

    @property
    def records(self) -> Database: ...


class RecordStore(Generic[R]):
    """The records of one kind. Every method raises `StoreError` when the medium fails or a row is damaged.

    Guarantees: a `write` is stored as a whole or not at all, and is committed once it returns. Of several inserts that
    race for one id, or changes that race for one version, exactly one succeeds.
    """

    def __init__(self, store: object, kind: type[R]) -> None:
        """Raise `UsageError` when the store keeps no records."""
        if not isinstance(store, HasRecords):
            name = type(store).__name__
            raise UsageError(f"{name} keeps no tokens, sessions, keys or schedules; use a store that does")
        self._database = database = store.records
        self.clock, self.liveness = database.clock, database.liveness
        self._kind = kind

    async def find(self, record_id: str, now: float = -math.inf) -> R | None:
        """Return the record; None when there is none, or when it is due."""
        return _read_one(self._kind, await self._fetch("find_record", record_id), now)

    async def all(self, owner: str | None = None) -> tuple[R, ...]:
        """Return the records of one owner or of all, oldest first."""
        rows = await self._database.fetch(*_select_all(self._kind, owner))
        return tuple([_read_record(self._kind, row) for row in rows])

    async def list_ids(self) -> list[str]:
        """Return the ids of all records, damaged or not, oldest first."""
        return [row[0] for row in await self._database.fetch(*_select_all(self._kind, None))]

    async def due(self, now: float) -> list[R]:
        """Return the records that are due, earliest first; damaged rows are left out."""
        return self._read_intact(await self._fetch("due_records", now))

    async def intact(self) -> list[R]:
        """Return all records, oldest first; damaged rows are left out."""
        return self._read_intact(await self._database.fetch(*_select_all(self._kind, None)))

    def _read_intact(self, rows: Rows) -> list[R]:
        records: list[R] = []
        for row in rows:
            # `all` reports a damaged row, which must not hinder the others.
            with suppress(StoreError):
                records.append(_read_record(self._kind, row))
        return records

    async def write(
        self, operation: Callable[[RecordTransaction], Result], entry: AuditEntry | None = None, *, lock: str = ""
    ) -> Result:
        """Return the operation's result once it is committed; unless the result is false, also audit `entry`.

        Operations with the same `lock` wait for each other: until one is committed, no other changes what it read. An
        operation may write records of several kinds.
        """

        def run(transaction: SqlTransaction) -> Result:
            if lock:
                transaction.lock(lock)
            return operation(RecordTransaction(transaction))

        return await self._database.write(run, entry)

    async def _fetch(self, name: str, value: object) -> Rows:
        return await self._database.fetch(name, (self._kind.columns.kind, value))


def _build_row(record: Record) -> tuple[object, ...]:
    kind, id_field, owner_field, _ = record.columns
    fields = msgspec.to_builtins(record, enc_hook=plain_value)
    del fields["version"]
    record_id, owner = fields.pop(id_field), fields.pop(owner_field, "")
    return kind, record_id, owner, record.due_at, canonical_json(fields)


def _select_all(kind: type[Record], owner: str | None) -> tuple[str, tuple[str, ...]]:
    name = kind.columns.kind
    return ("records", (name,)) if owner is None else ("records_of", (name, owner))


def _read_record(kind: type[R], row: tuple[Any, ...]) -> R:
    name, id_field, owner_field, remedy = kind.columns
    record_id, owner, version, body = row
    columns = {id_field: record_id, "version": version, **({owner_field: owner} if owner_field else {})}
    try:
        return msgspec.convert({**read_object(body), **columns}, kind)
    except (ValueError, TypeError, UsageError) as error:
        raise StoreError(f"the {name} {record_id[:64]!r} is damaged: {error}; {remedy}") from error


def _read_one(kind: type[R], rows: Rows, now: float) -> R | None:
    record = _read_record(kind, rows[0]) if rows else None
    return None if record is None or (record.due_at is not None and record.due_at <= now) else record
