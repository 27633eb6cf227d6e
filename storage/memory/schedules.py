"""Schedules in a dictionary, by the same laws as in a file."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.ports.schedules import MAX_SCHEDULES, PlanSchedule, too_many_schedules


class MemorySchedules:
    """Implements `ScheduleStore` for one process."""

    def __init__(self, audit: Callable[[Sequence[AuditEntry]], Awaitable[None]]) -> None:
        self._audit = audit
        self._rows: dict[str, PlanSchedule] = {}
        self._is_attended = False

    async def attend(self) -> None:
        self._is_attended = True

    async def is_attended(self) -> bool:
        return self._is_attended

    async def add(self, schedule: PlanSchedule, entry: AuditEntry) -> None:
        if len(self._rows) >= MAX_SCHEDULES:
            raise too_many_schedules()
        if schedule.schedule_id in self._rows:
            return
        self._rows[schedule.schedule_id] = schedule
        await self._audit((entry,))

    async def find(self, schedule_id: str) -> PlanSchedule | None:
        return self._rows.get(schedule_id)

    async def all(self) -> tuple[PlanSchedule, ...]:
        return tuple(self._rows.values())

    async def due(self, now: float) -> tuple[PlanSchedule, ...]:
        found = [(row.due_at, row) for row in self._rows.values()]
        return tuple(row for at, row in sorted(found, key=lambda pair: pair[0] or 0.0) if at is not None and at <= now)

    async def change(self, schedule: PlanSchedule, entry: AuditEntry | None = None) -> bool:
        found = self._rows.get(schedule.schedule_id)
        if found is None or found.version != schedule.version:
            return False
        self._rows[schedule.schedule_id] = replace(schedule, version=schedule.version + 1)
        if entry is not None:
            await self._audit((entry,))
        return True

    async def remove(self, schedule_id: str, entry: AuditEntry) -> bool:
        if self._rows.pop(schedule_id, None) is None:
            return False
        await self._audit((entry,))
        return True
