"""Business keys and shares of budgets in a SQL database: checked, then written, in the transaction of the intent."""

import json
from collections.abc import Sequence
from functools import partial

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import BudgetSpent
from planwarden.agent.core.execution import events as ev
from planwarden.agent.ports.budgets_and_keys import MAX_SHARES, ROUNDING, SWEEP_AFTER_S, SWEPT, HeldKey
from planwarden.storage.budgets_and_keys import Holdings, WantedKey, WantedShares
from planwarden.storage.sql.database import Condition, Rows, SqlTransaction
from planwarden.storage.sql.rows import read_key


def ask_holdings(transaction: SqlTransaction, holdings: Holdings, now: float | None) -> list[Condition]:
    """Return conditions that raise `BudgetSpent` or `DuplicateEffect`."""
    conditions: list[Condition] = []
    for shares in holdings.requests:
        cursor = transaction.execute("spent_shares", (shares.budget, now, json.dumps(shares.free)))
        conditions.append((cursor, partial(_check_budget, transaction, shares)))
    if holdings.keys:
        names = json.dumps([key.row.key for key in holdings.keys])
        conditions.append((transaction.execute("find_once_keys", (names, now)), partial(_check_keys, holdings.keys)))
    return conditions


def _check_budget(transaction: SqlTransaction, shares: WantedShares, rows: Rows, now: float) -> None:
    spent, count = float(rows[0][0]), int(rows[0][1])
    if spent + shares.amount <= shares.limit * ROUNDING and count + shares.count <= MAX_SHARES:
        return
    too_much = spent + shares.amount - shares.limit * ROUNDING, count + shares.count - MAX_SHARES
    values = shares.budget, now, json.dumps(shares.free), *too_much
    [(room_at,)] = transaction.execute("shares_room_at", values).fetchall()
    rest = max(shares.limit - spent, 0.0) if count + shares.count <= MAX_SHARES else 0.0
    raise BudgetSpent(shares.budget, rest, room_at)


def _check_keys(keys: Sequence[WantedKey], rows: Rows, now: float) -> None:
    others = {other.key: other for other in map(read_key, rows)}
    for key in keys:
        other = others.get(key.row.key)
        if other is not None and other.holder not in key.free:
            raise other.as_refusal()


def write_holdings(transaction: SqlTransaction, holdings: Holdings, now: float) -> None:
    """Write what was checked in the same transaction, and delete a few rows that are long over."""
    for holder in holdings.freed:
        transaction.execute("free_shares", (holder,))
        transaction.execute("free_once_keys", (holder,))
    for share in holdings.shares:
        transaction.execute("take_share", (share.budget, share.holder, share.amount, share.ends_at))
    for key in holdings.keys:
        transaction.execute("take_once_key", (*_list_values(key.row), None))
    sweep(transaction, now)


def sweep(transaction: SqlTransaction, now: float) -> None:
    for name in ("sweep_shares", "sweep_once_keys"):
        transaction.execute(name, (now - SWEEP_AFTER_S, SWEPT))


def take_key(transaction: SqlTransaction, once: ev.OnceKey, holder: str, now: float) -> bool:
    """Take a key that is not a call's; False when it is taken."""
    held_key = HeldKey(
        key=once.key,
        tool_name="",
        values=once.values,
        holder=holder,
        principal="",
        taken_at=now,
        ends_at=now + once.keep_s,
    )
    is_taken = transaction.execute("take_once_key", (*_list_values(held_key), now)).rowcount == 1
    sweep(transaction, now)
    return is_taken


def forget_key(transaction: SqlTransaction, key: str) -> bool:
    return transaction.execute("forget_once_key", (key,)).rowcount == 1


def _list_values(key: HeldKey) -> tuple[object, ...]:
    fields = canonical_json(key.values)
    return key.key, key.tool_name, fields, key.holder, key.principal, key.taken_at, key.ends_at
