"""Which processes live: each holds an advisory lock on its control connection.

A free lock alone proves nothing: a connection can break for a moment, and a restart of the database frees all locks. So
an owner is taken for dead only when its lock stays free for a while, and nobody is right after a restart.
"""

from collections.abc import Collection
from time import monotonic

import anyio.to_thread

from planwarden.storage.postgres.control import Control
from planwarden.storage.postgres.reader import PostgresReader

GONE_S = 2.0
"""Seconds for which the lock of a dead process has been free."""
RESTARTED_S = 5.0
"""Seconds after a start of the database in which nobody is taken for dead."""


class LockLiveness:
    """Implements `Liveness`."""

    def __init__(self, control: Control, reader: PostgresReader, gone_s: float) -> None:
        self._control = control
        self._reader = reader
        self._gone_s = gone_s
        self._free_since: dict[str, float] = {}

    async def announce(self, owner: str) -> None:
        await anyio.to_thread.run_sync(self._control.announce, owner)

    async def is_dead(self, owner: str) -> bool:
        return owner in await self.find_dead([owner])

    async def find_dead(self, owners: Collection[str]) -> list[str]:
        """Those of the owners whose processes are gone."""
        if not owners:
            return []
        rows = {row[0]: row[1:] for row in await self._reader.fetch("living", (list(owners), RESTARTED_S))}
        now, dead = monotonic(), list[str]()
        for owner in owners:
            is_free, is_early = rows.get(owner, (True, False))
            if not is_free or is_early:
                self._free_since.pop(owner, None)
            elif owner not in rows or now - self._free_since.setdefault(owner, now) >= self._gone_s:
                # Whoever has no row said that it ends.
                dead.append(owner)
        return dead
