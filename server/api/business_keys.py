"""Lists and frees the business keys of calls; `planwarden.agent.approval.business_keys` says what a key is.

Only a person, or a program that embeds planwarden, can free a key, so no MCP tool uses this module.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice, product

import msgspec

from planwarden.agent.approval.answers import Authority
from planwarden.agent.approval.business_keys import digest_key
from planwarden.agent.approval.grants import MAKERS
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.ports.budgets_and_keys import HeldKey
from planwarden.agent.ports.store import Store
from planwarden.server.views.instants import to_utc

MAX_LISTED = 200
MAX_COMBINATIONS = 64
"""The most combinations of possible values that one search tries."""


class OnceKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has a business key."""

    tool_name: str
    values: dict[str, JsonValue]
    """The values of the key by JSON pointer into the arguments; long ones are cut."""
    execution_id: str
    call_id: str
    principal: str
    """The owner of the execution."""
    taken_at: datetime
    ends_at: datetime
    """The time from which another call may take the key."""
    key: str
    """Digest of the tool's name and the values."""


class OnceService:
    """The business keys of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self, tool_name: str | None = None) -> tuple[OnceKeyView, ...]:
        """Return at most 200 keys that calls hold, newest first; with `tool_name`, only keys of that tool."""
        return tuple(_view(key) for key in await self._store.list_once(tool_name, MAX_LISTED))

    async def find(self, tool_name: str, candidates: Mapping[str, Sequence[JsonValue]]) -> OnceKeyView:
        """Return the call whose key has, at each pointer, one of the values that `candidates` lists, likeliest first.
        Combinations are tried in that order; the first one that a call has counts.

        Raises:
            InvalidArguments: no call has one of the first `MAX_COMBINATIONS` combinations of values as its key.
        """
        digests = [digest_key(tool_name, values) for values in islice(_list_values(candidates), MAX_COMBINATIONS)]
        rows_by_key = {row.key: row for row in await self._store.find_once(digests)}
        for key in digests:
            if key in rows_by_key:
                return _view(rows_by_key[key])
        raise InvalidArguments(
            f"no call of {tool_name[:128]!r} has that key; `planwarden once list` shows those that calls have; give "
            "every value of the key"
        )

    async def forget(self, view: OnceKeyView, authority: Authority) -> None:
        """Free the key. Raises `InvalidArguments` if neither a person nor a program decides, or if the key is free."""
        if authority.assurance not in MAKERS:
            raise InvalidArguments("only a person can let a call happen again, with `planwarden once forget`")
        facts: dict[str, JsonValue] = {
            "tool": view.tool_name,
            "once": view.key,
            "call": view.call_id,
            "assurance": authority.assurance,
            "channel": authority.channel,
            "principal": authority.principal,
        }
        entry = AuditEntry(kind="once_forgotten", facts=facts, execution_id=view.execution_id)
        if not await self._store.forget_once_key(view.key, entry):
            raise InvalidArguments("the key is free already")


def _list_values(candidates: Mapping[str, Sequence[JsonValue]]) -> Iterator[dict[str, JsonValue]]:
    pointers = [f"/{name.removeprefix('/')}" for name in candidates]
    for values in product(*candidates.values()):
        yield dict(zip(pointers, values, strict=True))


def _view(key: HeldKey) -> OnceKeyView:
    execution_id, _, call_id = key.holder.partition(":")
    times = {"taken_at": to_utc(key.taken_at), "ends_at": to_utc(key.ends_at)}
    return copy_fields(OnceKeyView, key, execution_id=execution_id, call_id=call_id, **times)
