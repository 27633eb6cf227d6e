"""Schedules of saved plans.

A tick is a time, in whole Unix seconds, at which a plan is due to start. Each decision about a tick is a change of
the schedule's row, conditional on the row's version. So of all processes that look at a tick, exactly one decides it,
and a process that dies halfway leaves a row that says what remains to be done.
"""

from typing import Annotated, Literal

import msgspec

from planwarden.agent.common.errors import LimitExceeded
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.storage.sql.records import Columns, Record, RecordStore, RecordTransaction

MAX_SCHEDULES = 1_000
"""The most schedules of all owners together."""
MAX_RECENT = 20
"""The most tick records that a schedule keeps; the oldest are dropped first."""

Overlap = Literal["skip", "queue"]
MissedTicks = Literal["latest", "none"]
TickOutcome = Literal["started", "skipped", "missed", "failed"]
Tick = Annotated[int, msgspec.Meta(ge=0, le=100_000_000_000)]
"""Unix seconds, at most in the year 5138: a row with another number is damaged, because no calendar shows it."""


class TickRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one tick."""

    tick_at: Tick
    outcome: TickOutcome
    reason: str = ""
    """Why nothing was started."""
    execution_id: str | None = None
    thread_id: str | None = None


class PlanSchedule(Record, frozen=True, kw_only=True):
    """One schedule, as stored."""

    columns = Columns("schedule", "schedule_id", "owner", remedy="remove it and add it again")

    schedule_id: str
    plan: str
    """Name of the saved plan."""
    cron: str
    timezone: str
    """A name of the IANA time zone database."""
    inputs: dict[str, JsonValue]
    overlap: Overlap
    missed: MissedTicks
    owner: str
    """The principal to whom the runs belong."""
    created_by: str
    created_at: float
    paused_at: float | None = None
    next_at: Tick
    """The first tick that nobody has decided yet."""
    starting_at: Tick | None = None
    """The tick that is being started; its run may exist already, but the outcome is not recorded yet."""
    queued: tuple[Tick, ...] = ()
    """Ticks that wait until the last run has ended, oldest first."""
    last_execution: str | None = None
    """The execution that was started last."""
    recent: tuple[TickRecord, ...] = ()
    """What became of the last ticks, the newest at the end."""
    asked_by: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """For each tick that is not handled yet and that somebody asked for: who asked."""

    @property
    def due_at(self) -> float | None:
        """When to look at the schedule. 0: at once, whatever the clock says; None: never, as it is paused and idle."""
        # Pausing empties `queued`, so in a paused schedule only runs that a person asked for can wait there.
        if self.starting_at is not None or self.queued:
            return 0.0
        return None if self.paused_at is not None else float(self.next_at)


class ScheduleStore(RecordStore[PlanSchedule]):
    """The schedules of one store.

    Guarantees: if several changes to the same version of a row race, exactly one is stored; the others change nothing
    and return False. An audit entry passed with a change is stored in the same transaction, if the change is stored.
    """

    def __init__(self, store: object) -> None:
        super().__init__(store, PlanSchedule)
        self.announce_scheduler = self.liveness.announce_scheduler
        self.has_scheduler = self.liveness.has_scheduler

    async def add(self, schedule: PlanSchedule, entry: AuditEntry) -> None:
        """Store a new schedule; change nothing if its id is taken. Raises `LimitExceeded` at `MAX_SCHEDULES`."""

        def insert(transaction: RecordTransaction) -> bool:
            if len(transaction.all(PlanSchedule)) >= MAX_SCHEDULES:
                raise LimitExceeded(f"there are {MAX_SCHEDULES} schedules, which is the limit; remove one first")
            return transaction.insert(schedule)

        await self.write(insert, entry, lock="schedules")

    async def change(self, schedule: PlanSchedule, entry: AuditEntry | None = None) -> bool:
        """Store this as the next version if the row still has `schedule.version`. Return whether it was stored."""
        return await self.write(lambda transaction: transaction.change(schedule), entry)

    async def remove(self, schedule_id: str, entry: AuditEntry) -> bool:
        """Delete a schedule, damaged or not; False when there is none."""
        return await self.write(lambda transaction: transaction.delete(PlanSchedule, schedule_id), entry)
