"""Business keys and shares of budgets without a disk."""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from planwarden.agent.common.errors import BudgetSpent
from planwarden.agent.core import events as ev
from planwarden.agent.ports.holdings import MAX_SHARES, ROUNDING, SWEEP_AFTER_S, HeldKey
from planwarden.storage.holdings import Holdings, TakenShare, WantedShares


class MemoryHoldings:
    def __init__(self) -> None:
        self._shares: dict[tuple[str, str], TakenShare] = {}
        """By budget and holder."""
        self._keys: dict[str, HeldKey] = {}

    def check(self, holdings: Holdings, now: float) -> None:
        """Raises `BudgetSpent` or `DuplicateEffect`. To be called before the first write."""
        for wanted in holdings.wanted:
            self._check_budget(wanted, now)
        for key in holdings.keys:
            other = self._keys.get(key.held.key)
            if other is not None and other.ends_at > now and other.holder not in key.free:
                raise other.as_refusal()

    def _check_budget(self, wanted: WantedShares, now: float) -> None:
        counted = [
            share
            for (budget, holder), share in self._shares.items()
            if budget == wanted.budget and share.ends_at > now and holder not in wanted.free
        ]
        spent = sum(share.amount for share in counted)
        lacking = spent + wanted.amount - wanted.limit * ROUNDING
        lacking_count = len(counted) + wanted.count - MAX_SHARES
        if lacking <= 0 and lacking_count <= 0:
            return
        room_at, freed = None, 0.0
        for number, share in enumerate(sorted(counted, key=lambda share: share.ends_at), 1):
            freed += share.amount
            if freed >= lacking and number >= lacking_count:
                room_at = share.ends_at
                break
        raise BudgetSpent(wanted.budget, 0.0 if lacking_count > 0 else max(wanted.limit - spent, 0.0), room_at)

    def write(self, holdings: Holdings, now: float) -> None:
        """Write what was checked."""
        self._shares = {name: share for name, share in self._shares.items() if share.holder not in holdings.freed}
        self._keys = {name: held for name, held in self._keys.items() if held.holder not in holdings.freed}
        for share in holdings.shares:
            before = self._shares.get((share.budget, share.holder), share)
            self._shares[share.budget, share.holder] = TakenShare(
                share.holder, share.budget, share.amount, max(before.ends_at, share.ends_at)
            )
        for key in holdings.keys:
            self._put(key.held)
        self._sweep(now)

    def _put(self, held: HeldKey) -> None:
        before = self._keys.pop(held.key, held)
        self._keys[held.key] = replace(held, ends_at=max(before.ends_at, held.ends_at))

    def _sweep(self, now: float) -> None:
        over = now - SWEEP_AFTER_S
        self._shares = {name: share for name, share in self._shares.items() if share.ends_at > over}
        self._keys = {name: held for name, held in self._keys.items() if held.ends_at > over}

    def take(self, once: ev.OnceKey, holder: str, now: float) -> bool:
        """Take a key that is not a call's; False when it is taken."""
        other = self._keys.get(once.key)
        if other is not None and other.ends_at > now:
            return False
        self._put(
            HeldKey(
                key=once.key,
                tool_name="",
                values=once.values,
                holder=holder,
                principal="",
                taken_at=now,
                ends_at=now + once.keep_s,
            )
        )
        self._sweep(now)
        return True

    def forget(self, key: str) -> bool:
        return self._keys.pop(key, None) is not None

    def find(self, keys: Collection[str], now: float) -> Iterable[HeldKey]:
        """Those of the keys that are held."""
        return (held for held in self._keys.values() if held.key in keys and held.ends_at > now)

    def list(self, tool_name: str | None, now: float) -> list[HeldKey]:
        """Those of calls that are held, newest first."""
        found = (held for held in self._keys.values() if held.tool_name and held.ends_at > now)
        return [held for held in found if tool_name in (None, held.tool_name)][::-1]
