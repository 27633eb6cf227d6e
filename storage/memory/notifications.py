"""Notices in a dictionary, by the same laws as in a file."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planwarden.agent.core.audit import Entry
from planwarden.agent.core.notifications import Notice
from planwarden.agent.ports.environment import Clock
from planwarden.storage.ports.notifications import MAX_WAITING, NO_CHANNEL, TOO_MANY, failure


@dataclass(slots=True)
class _Row:
    notice: Notice
    next_at: float


class MemoryNotices:
    """Belongs to one `MemoryStore`, whose audit it writes to."""

    def __init__(self, clock: Clock, audit: Callable[[Sequence[Entry]], None]) -> None:
        self._clock = clock
        self._audit = audit
        self._rows: dict[str, _Row] = {}

    def add(self, notices: Iterable[Notice]) -> None:
        """Store new ones, as part of an append; the oldest give way."""
        for notice in notices:
            self._rows[notice.notice_id] = _Row(notice, notice.created_at)
        dropped = [row.notice for row in self._rows.values()][: max(0, len(self._rows) - MAX_WAITING)]
        self._fail(dropped, TOO_MANY)

    async def is_due(self, channel: str) -> bool:
        return bool(self._due(channel))

    async def claim(self, channel: str, *, limit: int, lease_s: float) -> tuple[Notice, ...]:
        claimed = self._due(channel)[:limit]
        for row in claimed:
            row.notice = replace(row.notice, attempts=row.notice.attempts + 1)
            row.next_at = self._clock.now() + lease_s
        return tuple(row.notice for row in claimed)

    def _due(self, channel: str) -> list[_Row]:
        now = self._clock.now()
        found = [row for row in self._rows.values() if row.notice.channel == channel and row.next_at <= now]
        return sorted(found, key=lambda row: row.next_at)

    async def delivered(self, notice_id: str) -> None:
        self._rows.pop(notice_id, None)

    async def postpone(self, notice: Notice, until: float) -> bool:
        row = self._claimed(notice)
        if row is not None:
            row.next_at = until
        return row is not None

    async def give_up(self, notice: Notice, reason: str) -> bool:
        row = self._claimed(notice)
        if row is not None:
            self._fail([row.notice], reason)
        return row is not None

    def _claimed(self, notice: Notice) -> _Row | None:
        row = self._rows.get(notice.notice_id)
        return row if row is not None and row.notice.attempts == notice.attempts else None

    async def sweep(self, channels: Collection[str], before: float) -> int:
        now = self._clock.now()
        old = [
            row.notice
            for row in self._rows.values()
            if row.notice.channel not in channels and row.notice.created_at < before and row.next_at <= now
        ]
        self._fail(old, NO_CHANNEL)
        return len(old)

    async def waiting(self) -> Mapping[str, int]:
        return Counter(row.notice.channel for row in self._rows.values())

    def _fail(self, notices: Sequence[Notice], reason: str) -> None:
        for notice in notices:
            del self._rows[notice.notice_id]
        if notices:
            self._audit([failure(notice, reason) for notice in notices])
