"""What one append takes of budgets and business keys, and gives back: the same for every store.

A store checks all of it before its first write and refuses with `BudgetSpent` or `DuplicateEffect`. What a call gave
back in the same append is free, and what a call holds already it may take again.
"""

from collections.abc import Sequence
from zlib import crc32

import msgspec

from planwarden.agent.core.execution import events as ev
from planwarden.agent.ports.budgets_and_keys import HeldKey, name_holder
from planwarden.agent.ports.store import Append

LOCKS = 1024
"""Budgets and keys share so many locks, because a database can hold a limited number."""


class TakenShare(msgspec.Struct, frozen=True):
    """A share that a call takes."""

    holder: str
    budget: str
    amount: float
    ends_at: float


class WantedShares(msgspec.Struct, frozen=True):
    """What an append wants of one budget."""

    budget: str
    amount: float
    count: int
    limit: float
    free: tuple[str, ...]
    """Holders whose shares do not count: they gave them back, or are counted in `amount`."""


class WantedKey(msgspec.Struct, frozen=True):
    """A key that an append wants."""

    row: HeldKey
    free: tuple[str, ...]
    """Holders who may have it: the call itself, and those that gave theirs back."""


class Holdings(msgspec.Struct, frozen=True):
    """All that an append takes and gives back; to be given back first."""

    freed: tuple[str, ...] = ()
    """Holders."""
    shares: tuple[TakenShare, ...] = ()
    requests: tuple[WantedShares, ...] = ()
    """By budget, in order."""
    keys: tuple[WantedKey, ...] = ()

    @property
    def locks(self) -> list[int]:
        """The locks that make others wait who want of the same, in the order in which everybody takes them."""
        names = [*(shares.budget for shares in self.requests), *(key.row.key for key in self.keys)]
        return sorted({crc32(name.encode()) % LOCKS for name in names})


_GIVING_BACK = (ev.ToolFailed, ev.CallAttemptFailed)
"""Events that may give something back."""
_HOLDING: frozenset[type[ev.Event]] = frozenset({ev.ToolCallIntended, *_GIVING_BACK})
"""Events that may take something, or give it back."""


def project_holdings(append: Append) -> Holdings | None:
    """Return what the append takes and gives back; None for nothing at all, as nearly always.

    Raises:
        DuplicateEffect: two calls of the append want the same key.
    """
    events = [recorded.event for recorded in append.recorded if type(recorded.event) in _HOLDING]
    if not [True for event in events if _changes_holdings(append, event)]:
        return None
    freed: list[str] = []
    shares: dict[tuple[str, str], tuple[ev.BudgetShare, TakenShare]] = {}
    keys: dict[str, WantedKey] = {}
    execution = append.execution
    for recorded in append.recorded:
        event = recorded.event
        if not isinstance(event, ev.ToolCallIntended | ev.ToolFailed | ev.CallAttemptFailed):
            continue
        call = execution.call(event.call_id)
        holder = name_holder(execution, call)
        if not isinstance(event, ev.ToolCallIntended):
            if event.nothing_happened and (call.once or call.shares):
                freed.append(holder)
            continue
        for share in event.shares:
            share_row = TakenShare(holder, share.budget, share.amount, recorded.at + share.window_s)
            shares[share.budget, holder] = share, share_row
        if event.once is not None:
            held_key = HeldKey(
                key=event.once.key,
                tool_name=call.tool_name,
                values=event.once.values,
                holder=holder,
                principal=execution.principal,
                taken_at=recorded.at,
                ends_at=recorded.at + event.once.keep_s,
            )
            other = keys.get(held_key.key)
            if other is not None and other.row.holder not in (holder, *freed):
                raise other.row.as_refusal()
            keys[held_key.key] = WantedKey(held_key, (holder, *freed))
    return Holdings(
        tuple(dict.fromkeys(freed)),
        tuple(share_row for _, share_row in shares.values()),
        tuple(_add_up([*shares.values()], freed)),
        tuple(keys[name] for name in sorted(keys)),
    )


def _changes_holdings(append: Append, event: ev.Event) -> bool:
    if isinstance(event, ev.ToolCallIntended):
        return bool(event.shares) or event.once is not None
    if isinstance(event, _GIVING_BACK) and event.nothing_happened:
        call = append.execution.call(event.call_id)
        return bool(call.shares) or call.once is not None
    return False


def _add_up(shares: Sequence[tuple[ev.BudgetShare, TakenShare]], freed: Sequence[str]) -> list[WantedShares]:
    by_budget: dict[str, list[tuple[ev.BudgetShare, TakenShare]]] = {}
    for share, share_row in shares:
        by_budget.setdefault(share.budget, []).append((share, share_row))
    return [
        WantedShares(
            budget,
            sum(share.amount for share, _ in group),
            len(group),
            min(share.limit for share, _ in group),
            (*freed, *(share_row.holder for _, share_row in group)),
        )
        for budget, group in sorted(by_budget.items())
    ]
