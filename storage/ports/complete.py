"""A store that has everything that planwarden keeps, as commands and servers open it."""

from pathlib import Path
from typing import Protocol

from planwarden.agent.ports.store import Store
from planwarden.storage.ports.keys import HasKeys
from planwarden.storage.ports.notifications import HasNotifications
from planwarden.storage.ports.schedules import HasSchedules
from planwarden.storage.ports.sessions import HasSessions
from planwarden.storage.ports.tokens import HasTokens


class CompleteStore(Store, HasTokens, HasSessions, HasNotifications, HasKeys, HasSchedules, Protocol):
    """Executions, tokens, sessions, notifications, signing keys and schedules in one place."""

    async def count_prunable(self, before: float) -> tuple[int, float | None]:
        """How many executions `prune` would delete, and when the oldest of them last changed."""
        ...

    async def check(self) -> dict[str, int | str]:
        """Facts for a health report: `integrity`, `schema`, numbers of rows, `size_bytes`, perhaps `server`."""
        ...

    async def backup(self, target: Path) -> None:
        """Write a consistent copy at `target`. Raises `StoreError` when it exists, or this store cannot do that."""
        ...
