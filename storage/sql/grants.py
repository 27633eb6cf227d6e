"""Standing grants in a SQL database; a use is counted in the transaction of the call's intent."""

from typing import Any

import msgspec

from planwarden.agent.common.canonical import canonical_json, read_json
from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.ports.grant import Grant
from planwarden.storage.sql.database import SqlTransaction
from planwarden.storage.sql.rows import read_object

_COLUMNS = (
    "grant_id",
    "tool_name",
    "definition_digest",
    "arguments",
    "free",
    "step",
    "uses",
    "used",
    "used_on",
    "used_before",
    "expires_at",
    "owner",
    "created_by",
    "assurance",
    "channel",
    "created_at",
    "revoked_at",
)


def add_grant(transaction: SqlTransaction, grant: Grant) -> bool:
    """Store a new grant. Return True."""
    values = {name: getattr(grant, name) for name in _COLUMNS}
    values["arguments"] = canonical_json(grant.arguments)
    values["free"] = canonical_json(list[JsonValue](grant.free))
    if grant.step is not None:
        values["step"] = canonical_json(msgspec.to_builtins(grant.step))
    return transaction.execute("add_grant", [*values.values()]).rowcount == 1


def read_grant(row: tuple[Any, ...]) -> Grant:
    """Return the grant of a row. Raises `StoreError` when the row is damaged."""
    fields = dict(zip(_COLUMNS, row, strict=True))
    try:
        fields["arguments"] = read_object(fields["arguments"])
        fields["free"] = read_json(fields["free"])
        if fields["step"] is not None:
            fields["step"] = read_object(fields["step"])
        return msgspec.convert(fields, Grant)
    except (ValueError, TypeError) as error:
        raise StoreError(f"grant {fields['grant_id']!r} is damaged: {error}; revoke it") from error
