"""Notifications in a dictionary, by the same laws as in a file."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.notifications import Notification
from planwarden.agent.ports.environment import Clock
from planwarden.storage.ports.notifications import MAX_WAITING, NO_CHANNEL, TOO_MANY, failure


class _Row(msgspec.Struct):
    notification: Notification
    next_at: float


class MemoryNotifications:
    """Belongs to one `MemoryStore`, whose audit it writes to."""

    def __init__(self, clock: Clock, audit: Callable[[Sequence[AuditEntry]], None]) -> None:
        self._clock = clock
        self._audit = audit
        self._rows: dict[str, _Row] = {}

    def add(self, notifications: Iterable[Notification]) -> None:
        """Store new ones, as part of an append; the oldest give way."""
        for notification in notifications:
            self._rows[notification.notification_id] = _Row(notification, notification.created_at)
        dropped = [row.notification for row in self._rows.values()][: max(0, len(self._rows) - MAX_WAITING)]
        self._fail(dropped, TOO_MANY)

    async def is_due(self, channel: str) -> bool:
        return bool(self._due(channel))

    async def claim(self, channel: str, *, limit: int, lease_s: float) -> tuple[Notification, ...]:
        claimed = self._due(channel)[:limit]
        for row in claimed:
            row.notification = replace(row.notification, attempts=row.notification.attempts + 1)
            row.next_at = self._clock.now() + lease_s
        return tuple(row.notification for row in claimed)

    def _due(self, channel: str) -> list[_Row]:
        now = self._clock.now()
        found = [row for row in self._rows.values() if row.notification.channel == channel and row.next_at <= now]
        return sorted(found, key=lambda row: row.next_at)

    async def delivered(self, notification_id: str) -> None:
        self._rows.pop(notification_id, None)

    async def postpone(self, notification: Notification, until: float) -> bool:
        row = self._claimed(notification)
        if row is not None:
            row.next_at = until
        return row is not None

    async def give_up(self, notification: Notification, reason: str) -> bool:
        row = self._claimed(notification)
        if row is not None:
            self._fail([row.notification], reason)
        return row is not None

    def _claimed(self, notification: Notification) -> _Row | None:
        row = self._rows.get(notification.notification_id)
        return row if row is not None and row.notification.attempts == notification.attempts else None

    async def sweep(self, channels: Collection[str], before: float) -> int:
        now = self._clock.now()
        old = [
            row.notification
            for row in self._rows.values()
            if row.notification.channel not in channels and row.notification.created_at < before and row.next_at <= now
        ]
        self._fail(old, NO_CHANNEL)
        return len(old)

    async def waiting(self) -> Mapping[str, int]:
        return Counter(row.notification.channel for row in self._rows.values())

    def _fail(self, notifications: Sequence[Notification], reason: str) -> None:
        for notification in notifications:
            del self._rows[notification.notification_id]
        if notifications:
            self._audit([failure(notification, reason) for notification in notifications])
