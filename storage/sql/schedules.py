"""Schedules in a SQL database, beside the executions."""

from typing import Any

import msgspec

from planwarden.agent.common.canonical import canonical_json, read_json
from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.agent.common.struct import plain_value
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.environment import Clock
from planwarden.storage.ports.schedules import (
    MAX_SCHEDULES,
    Attendance,
    PlanSchedule,
    damaged_schedule,
    too_many_schedules,
)
from planwarden.storage.sql.database import Database, SqlTransaction

_FIXED = ("schedule_id", "plan", "cron", "timezone", "inputs", "overlap", "missed", "owner", "created_by", "created_at")
_CHANGING = ("paused_at", "next_at", "starting_at", "queued", "last_execution", "recent")
_JSON = ("inputs", "queued", "recent")


class SqlSchedules:
    """Implements `ScheduleStore`."""

    def __init__(self, database: Database, clock: Clock, attendance: Attendance) -> None:
        self._database = database
        self._clock = clock
        self.attend = attendance.attend
        self.is_attended = attendance.is_attended

    async def add(self, schedule: PlanSchedule, entry: AuditEntry) -> None:
        values = (*_list_values(schedule, _FIXED), *_list_values(schedule, _CHANGING))

        def insert(transaction: SqlTransaction) -> bool:
            transaction.lock("schedules")
            # Read first, so that what is refused leaves nothing behind.
            if int(transaction.execute("count_schedules").fetchall()[0][0]) >= MAX_SCHEDULES:
                return False
            if transaction.execute("add_schedule", (*values, schedule.due_at, schedule.version)).rowcount:
                transaction.add_audit((entry,), self._clock.now())
            return True

        if not await self._database.write(insert):
            raise too_many_schedules()

    async def find(self, schedule_id: str) -> PlanSchedule | None:
        found = await self._database.fetch("find_schedule", (schedule_id,))
        return _read_schedule(found[0]) if found else None

    async def all(self) -> tuple[PlanSchedule, ...]:
        return tuple(map(_read_schedule, await self._database.fetch("schedules")))

    async def due(self, now: float) -> tuple[PlanSchedule, ...]:
        found: list[PlanSchedule] = []
        for row in await self._database.fetch("due_schedules", (now,)):
            try:
                found.append(_read_schedule(row))
            except StoreError:
                # `all` reports it, and it must not stand in the way of the others.
                continue
        return tuple(found)

    async def change(self, schedule: PlanSchedule, entry: AuditEntry | None = None) -> bool:
        values = (*_list_values(schedule, _CHANGING), schedule.due_at, schedule.schedule_id, schedule.version)

        def update(transaction: SqlTransaction) -> bool:
            if transaction.execute("change_schedule", values).rowcount == 0:
                return False
            if entry is not None:
                transaction.add_audit((entry,), self._clock.now())
            return True

        return await self._database.write(update)

    async def remove(self, schedule_id: str, entry: AuditEntry) -> bool:
        def delete(transaction: SqlTransaction) -> bool:
            if transaction.execute("remove_schedule", (schedule_id,)).rowcount == 0:
                return False
            transaction.add_audit((entry,), self._clock.now())
            return True

        return await self._database.write(delete)


def _list_values(schedule: PlanSchedule, names: tuple[str, ...]) -> list[object]:
    fields = msgspec.to_builtins(schedule, enc_hook=plain_value)
    return [canonical_json(fields[name]) if name in _JSON else fields[name] for name in names]


def _read_schedule(row: tuple[Any, ...]) -> PlanSchedule:
    """The schedule of a row. Raises `StoreError` when the row is damaged."""
    found = dict(zip((*_FIXED, *_CHANGING, "version"), row, strict=True))
    try:
        for name in _JSON:
            found[name] = read_json(found[name])
        return msgspec.convert(found, PlanSchedule)
    except (ValueError, TypeError, PlanwardenError) as error:
        raise damaged_schedule(found["schedule_id"], error) from error
