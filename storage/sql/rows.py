"""Reads rows of a SQL database as hostile input: a bad row raises `StoreError` and never becomes a half-built value."""

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.canonical import canonical_json, read_json
from planwarden.agent.common.errors import LogUnreadable, PlanwardenError, StoreError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import GENESIS, POLICY_CHARS, AuditEntry, AuditRow, hash_row
from planwarden.agent.core.execution.state import TRANSITIONS
from planwarden.agent.ports.holdings import Grant, HeldKey
from planwarden.agent.ports.store import Header, SuspensionRow
from planwarden.storage.codec import count_readable, decode_events
from planwarden.storage.sql.database import Rows


def read_log(execution_id: str, after: int, rows: Sequence[tuple[Any, ...]]) -> tuple[ev.Recorded, ...]:
    """Return the events with a sequence above `after`. Raises `LogUnreadable` if the rows are not what was written."""
    recorded: list[ev.Recorded] = []
    version = following = 0
    for version, first, at, body, checksum in rows:
        # A flipped bit may turn a column into a value of another type.
        if type(version) is not int or type(first) is not int:
            raise _damaged(execution_id, "it does not say where its events belong")
        if first != following if recorded else first > after + 1:
            raise _damaged(execution_id, f"events are missing before event {first}", first)
        if checksum != checksum_of(execution_id, first, at, body):
            raise _damaged(execution_id, f"the events from {first} on are not what was written", first)
        try:
            events = decode_events(body)
        except LogUnreadable as error:
            raise LogUnreadable(error.message, sequence=first + count_readable(body)) from error
        recorded.extend(
            ev.Recorded(sequence=sequence, at=at, event=event) for sequence, event in enumerate(events, first)
        )
        following = first + len(events)
    if recorded and following != version + 1:
        raise _damaged(execution_id, f"it ends with event {following - 1} instead of {version}", following)
    return tuple(entry for entry in recorded if entry.sequence > after)


def checksum_of(execution_id: str, first: int, at: float, body: str) -> int:
    """Return the checksum of one row of the log. It is needed because SQLite does not detect flipped bits."""
    return crc32(f"{execution_id} {first} {at!r} {body}".encode())


def _damaged(execution_id: str, how: str, sequence: int | None = None) -> LogUnreadable:
    text = f"the log of execution {execution_id!r} is damaged: {how}; restore a backup"
    return LogUnreadable(text, sequence=sequence)


def read_object(text: str) -> dict[str, JsonValue]:
    """Return the JSON object of a text column. Raises `ValueError` or `TypeError` for anything else."""
    try:
        value = read_json(text)
    except PlanwardenError as error:
        raise ValueError(error.message) from error
    if not isinstance(value, dict):
        raise TypeError("it is not a JSON object")
    return value


def name_values(kind: type[msgspec.Struct], row: Sequence[Any]) -> dict[str, Any]:
    """Return a row's values by field name; every statement returns its columns in the order of the fields of `kind`."""
    return dict(zip(kind.__struct_fields__, row, strict=True))


def read_header(row: tuple[Any, ...]) -> Header:
    """Return the header of a row of `executions`. Raises `StoreError` when the row is damaged."""
    header = Header(**name_values(Header, row))
    if header.status not in TRANSITIONS or type(header.version) is not int:
        raise StoreError(f"the row of execution {header.execution_id!r} is damaged; restore a backup")
    return header


def read_suspension(row: tuple[Any, ...]) -> SuspensionRow:
    """Return a suspension from its row, which is joined with columns of its execution."""
    return SuspensionRow(**name_values(SuspensionRow, row))


def read_key(row: tuple[Any, ...]) -> HeldKey:
    """Return the once key in a row. Raises `StoreError` when the row is damaged."""
    fields = name_values(HeldKey, row)
    try:
        return msgspec.convert({**fields, "values": read_object(fields["values"])}, HeldKey)
    except (ValueError, TypeError) as error:
        raise StoreError(f"the once key {fields['key']!r} is damaged: {error}; restore a backup") from error


def read_grant(row: tuple[Any, ...]) -> Grant | None:
    """Return the grant of a row. Return None for a damaged one, which lets no call through; `audit verify` names it."""
    fields = name_values(Grant, row)
    try:
        fields["arguments"] = read_object(fields["arguments"])
        fields["free"] = read_json(fields["free"])
        if fields["step"] is not None:
            fields["step"] = read_object(fields["step"])
        return msgspec.convert(fields, Grant)
    except (ValueError, TypeError, PlanwardenError):
        return None


def read_audit_row(row: tuple[Any, ...], noun: str = "row") -> AuditRow:
    """Return a row as stored. Its hash is not checked, so the content may have been changed.

    Raises `StoreError` when the row is damaged; the message calls it `noun`.
    """
    sequence, at, kind, execution_id, suspension_id, text, hash_ = row
    try:
        entry = AuditEntry(kind=kind, facts=read_object(text), execution_id=execution_id, suspension_id=suspension_id)
        return AuditRow(sequence=sequence, at=float(at), entry=entry, hash=bytes(hash_))
    except (ValueError, TypeError) as error:
        raise StoreError(f"{noun} {sequence} of the audit is damaged: {error}; restore a backup") from error


def chain_audit(last: tuple[Any, ...] | None, entries: Iterable[tuple[float, AuditEntry, str]]) -> Rows:
    """Return the rows that continue the chain after `last`, the row of `last_audit`.

    Each entry comes with its time and the digest of the policy under which it was decided, if any. Where the policy
    changes, a row that names the new one comes first. A row under a policy has the beginning of the policy's digest.
    """
    sequence, before, last_policy = (int(last[0]), bytes(last[1]), last[2]) if last is not None else (0, GENESIS, None)
    rows: Rows = []
    for at, entry, policy in entries:
        if policy and "policy" not in entry.facts:
            entry = replace(entry, facts={**entry.facts, "policy": policy[:POLICY_CHARS]})
        policy_entry = AuditEntry(kind="policy", facts={"digest": policy})
        policy_facts = canonical_json(policy_entry.facts) if policy else last_policy
        for link in (entry,) if policy_facts == last_policy else (policy_entry, entry):
            sequence += 1
            facts = canonical_json(link.facts)
            before = hash_row(before, sequence, at, link, facts)
            rows.append((sequence, at, link.kind, link.execution_id, link.suspension_id, facts, before))
        last_policy = policy_facts
    return rows
