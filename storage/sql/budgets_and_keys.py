"""Business keys and shares of budgets that an append takes and gives back, in the append's transaction.

Everything is checked before the first write; a refusal is `BudgetExceeded` or `KeyHeld`. What a call gives back in an
append is free for the append's other calls, and a call may take again what it has already.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from zlib import crc32

import msgspec

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import BudgetExceeded
from planwarden.agent.core.execution import events as ev
from planwarden.agent.ports.budgets_and_keys import (
    MAX_SHARES,
    MAX_SWEPT_ROWS,
    ROUNDING,
    SWEEP_AFTER_S,
    HeldKey,
    KeyHeld,
)
from planwarden.agent.ports.store import Append
from planwarden.storage.sql.database import Condition, Rows, SqlTransaction
from planwarden.storage.sql.rows import read_key

LOCKS = 1024
"""The number of locks that all budgets and keys share, because a database can hold only a limited number."""


class WantedShare(msgspec.Struct, frozen=True):
    """A share that a call takes."""

    holder: str
    share: ev.BudgetShare
    ends_at: float


class WantedKey(msgspec.Struct, frozen=True):
    """A key that an append wants."""

    row: HeldKey
    free: tuple[str, ...]
    """The holders from which the call may take the key: the call itself, and calls that give it back in this append."""


class Holdings(msgspec.Struct, frozen=True):
    """All that an append takes and gives back; it gives back first."""

    freed: tuple[str, ...]
    """Holders that give back all of their shares and keys."""
    shares: dict[str, list[WantedShare]]
    """The shares to take, by the name of the budget."""
    keys: dict[str, WantedKey]

    @property
    def locks(self) -> list[int]:
        """The numbers of the locks that make other appends wait if they want the same budgets or keys."""
        return sorted({crc32(name.encode()) % LOCKS for name in (*self.shares, *self.keys)})


def project_holdings(append: Append) -> Holdings | None:
    """Return what the append takes and gives back; None if that is nothing, as for most appends.

    Raises:
        KeyHeld: two calls of the append want the same key.
    """
    execution = append.execution
    freed: list[str] = []
    shares: dict[tuple[str, str], WantedShare] = {}
    keys: dict[str, WantedKey] = {}
    for recorded in append.recorded:
        match recorded.event:
            case ev.ToolCallIntended(shares=claims, once=once_key) as event if claims or once_key is not None:
                call = execution.call(event.call_id)
                holder = execution.idempotency_key(call)
                for share in claims:
                    shares[share.budget, holder] = WantedShare(holder, share, recorded.at + share.window_s)
                if once_key is not None:
                    row = HeldKey.take(once_key, holder, recorded.at, call.tool_name, execution.principal)
                    free, other = (holder, *freed), keys.get(once_key.key)
                    if other is not None and other.row.holder not in free:
                        raise KeyHeld(other.row)
                    keys[once_key.key] = WantedKey(row, free)
            case ev.ToolFailed(nothing_happened=True) | ev.CallAttemptFailed(nothing_happened=True) as event:
                call = execution.call(event.call_id)
                if call.once or call.shares:
                    freed.append(execution.idempotency_key(call))
            case _:
                pass
    if not (freed or shares or keys):
        return None
    by_budget: defaultdict[str, list[WantedShare]] = defaultdict(list)
    for (budget, _), share in sorted(shares.items()):
        by_budget[budget].append(share)
    return Holdings(tuple(dict.fromkeys(freed)), by_budget, dict(sorted(keys.items())))


def ask_holdings(transaction: SqlTransaction, holdings: Holdings, now: float | None) -> list[Condition]:
    """Send the lookups, and return the conditions, which raise `BudgetExceeded` or `KeyHeld`."""
    conditions: list[Condition] = []
    for budget, shares in holdings.shares.items():
        # The stored shares of these holders do not count: they are given back, or the wanted shares replace them.
        free = json.dumps([*holdings.freed, *(claim.holder for claim in shares)])
        cursor = transaction.execute("spent_shares", (budget, now, free))
        conditions.append((cursor, partial(_check_budget, transaction, budget, shares, free)))
    if holdings.keys:
        cursor = transaction.execute("find_once_keys", (json.dumps([*holdings.keys]), now))
        conditions.append((cursor, partial(_check_keys, [*holdings.keys.values()])))
    return conditions


def _check_budget(
    transaction: SqlTransaction, budget: str, shares: Sequence[WantedShare], free: str, rows: Rows, now: float
) -> None:
    limit = min(claim.share.limit for claim in shares)
    amount, count = float(rows[0][0]), int(rows[0][1]) + len(shares)
    too_much = amount + sum(claim.share.amount for claim in shares) - limit * ROUNDING, count - MAX_SHARES
    if max(too_much) <= 0:
        return
    [(room_at,)] = transaction.execute("shares_room_at", (budget, now, free, *too_much)).fetchall()
    raise BudgetExceeded(budget, max(limit - amount, 0.0) if count <= MAX_SHARES else 0.0, room_at)


def _check_keys(keys: Sequence[WantedKey], rows: Rows, now: float) -> None:
    others = {other.key: other for other in map(read_key, rows)}
    for key in keys:
        other = others.get(key.row.key)
        if other is not None and other.holder not in key.free:
            raise KeyHeld(other)


def write_holdings(transaction: SqlTransaction, holdings: Holdings, now: float) -> None:
    """Write what was checked in the same transaction, and delete a few rows that ended long ago."""
    for holder in holdings.freed:
        transaction.execute("free_shares", (holder,))
        transaction.execute("free_once_keys", (holder,))
    for budget, shares in holdings.shares.items():
        for claim in shares:
            transaction.execute("take_share", (budget, claim.holder, claim.share.amount, claim.ends_at))
    for key in holdings.keys.values():
        transaction.execute("take_once_key", (*_list_values(key.row), None))
    _sweep(transaction, now)


def take_key(transaction: SqlTransaction, once_key: ev.OnceKey, holder: str, now: float) -> bool:
    """Take a key for something other than a call; return False if somebody has it already."""
    values = _list_values(HeldKey.take(once_key, holder, now))
    is_taken = transaction.execute("take_once_key", (*values, now)).rowcount == 1
    _sweep(transaction, now)
    return is_taken


def _sweep(transaction: SqlTransaction, now: float) -> None:
    for name in ("sweep_shares", "sweep_once_keys"):
        transaction.execute(name, (now - SWEEP_AFTER_S, MAX_SWEPT_ROWS))


def _list_values(key: HeldKey) -> tuple[object, ...]:
    fields = canonical_json(key.values)
    return key.key, key.tool_name, fields, key.holder, key.principal, key.taken_at, key.ends_at
