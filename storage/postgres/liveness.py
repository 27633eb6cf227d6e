"""Which processes live, as their advisory locks show."""

from collections.abc import Collection
from time import monotonic

import anyio.to_thread

from planwarden.storage.postgres.control import Control
from planwarden.storage.postgres.reader import PostgresReader

GONE_S = 1.5
"""Seconds for which the lock of a dead process has been free."""
RESTARTED_S = 12.0
"""The same for a lock that the database lost: longer than a living process takes to come back."""


class LockLiveness:
    """Implements `Liveness`."""

    def __init__(self, control: Control, reader: PostgresReader, gone_s: float) -> None:
        self._control = control
        self._reader = reader
        self._gone_s = gone_s
        self._free_since: dict[str, float] = {}

    async def announce(self, owner: str) -> None:
        if not self._control.is_announced(owner):
            await anyio.to_thread.run_sync(self._control.announce, owner)

    async def is_dead(self, owner: str) -> bool:
        return owner in await self.find_dead([owner])

    async def find_dead(self, owners: Collection[str] | None = None) -> list[str]:
        """Return those of the owners, or of all who have a lease, whose processes are gone."""
        rows = await self._reader.fetch("living", (None if owners is None else [*owners],))
        now = monotonic()
        is_shaken = now - self._control.reconnected_at < RESTARTED_S
        return [
            str(owner) for owner, *facts in rows if self._counts_as_dead(owner, *facts, now=now, is_shaken=is_shaken)
        ]

    async def attend(self) -> None:
        """Do nothing: every process that is published starts what is due."""

    async def is_attended(self) -> bool:
        return bool(await self._reader.fetch("processes"))

    def _counts_as_dead(
        self, owner: str, is_announced: bool, is_free: bool, is_from_before: bool, /, *, now: float, is_shaken: bool
    ) -> bool:
        if not is_announced:
            # A process without a row has said that it ends.
            return True
        if not is_free:
            self._free_since.pop(owner, None)
            return False
        patience_s = RESTARTED_S if is_shaken or is_from_before else self._gone_s
        return now - self._free_since.setdefault(owner, now) >= patience_s
