"""Encodes events as JSON text, and reads rows of a SQL database as hostile input: a bad row raises `StoreError` and
never becomes a half-built value. Also chains the rows of the audit.

The types in `agent.core.execution.events` define the JSON: a transaction is a list of events, and an event is a list of
its tag and its fields. Decoding checks every type: a value that does not fit raises `LogUnreadable`. Fields that a
stored event lacks take their defaults.

Each encoded text is decoded again and compared with the events, so that nothing is stored that would be read as
something else. If they differ, or msgspec fails, the standard library encodes the events instead: it turns tuples into
lists, refuses numbers that are not finite, and escapes lone surrogates, which UTF-8 cannot hold (file names may have
them). It also decodes a text that msgspec cannot parse. Text that decoding would refuse is never written.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import reduce
from types import GenericAlias
from typing import Any, cast
from zlib import crc32

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.canonical import canonical_json, parse_finite_float, read_json, refuse_constant
from planwarden.agent.common.errors import LogUnreadable, NotStorable, PlanwardenError, StoreError
from planwarden.agent.common.struct import JsonValue, plain_value
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import GENESIS, POLICY_CHARS, AuditEntry, AuditRow, hash_row
from planwarden.agent.core.execution.state import TRANSITIONS
from planwarden.agent.ports.budgets_and_keys import Grant, HeldKey
from planwarden.agent.ports.store import Header, SuspensionRow
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


Transaction = tuple[ev.Event, ...]
_ANY_EVENT = reduce(lambda union, kind: union | kind, cast("tuple[Any, ...]", ev.EVENT_TYPES))
_STORED: type[Transaction] = cast("Any", GenericAlias(tuple, (_ANY_EVENT, ...)))
_ENCODER = msgspec.json.Encoder(enc_hook=plain_value)
_DECODER = msgspec.json.Decoder(_STORED)


def encode_events(events: Iterable[ev.Event]) -> str:
    """Return the text of one transaction's events, on one line.

    Raises:
        NotStorable: a number is not finite, or a value does not fit its field, so it could not be read back.
    """
    listed = tuple(events)
    try:
        with suppress(UnicodeEncodeError, msgspec.DecodeError):
            whole = _ENCODER.encode(listed)
            if _DECODER.decode(whole) == listed:
                return whole.decode()
        text = json.dumps(msgspec.to_builtins(listed, enc_hook=plain_value), separators=(",", ":"), allow_nan=False)
        _decode(text)
        return text
    except (ValueError, TypeError, RecursionError) as error:
        raise NotStorable(f"a value cannot be recorded, because it could not be read back: {error}") from error


def decode_events(text: str) -> Transaction:
    """Return the events of one stored transaction.

    Raises:
        LogUnreadable: the text is not what `encode_events` writes.
    """
    try:
        return _decode(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).replace("NoneType", "null")
        raise LogUnreadable(f"a stored event is damaged, or was written by a newer planwarden: {reason}") from error


def _decode(text: str) -> Transaction:
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        document = json.loads(text, parse_constant=refuse_constant, parse_float=parse_finite_float)
        return msgspec.convert(document, _STORED)


def count_readable(text: str) -> int:
    """Return how many events of a stored transaction come before the first that cannot be decoded."""
    count = 0
    with suppress(ValueError, TypeError, RecursionError):
        for stored in json.loads(text):
            msgspec.convert((stored,), _STORED)
            count += 1
    return count
