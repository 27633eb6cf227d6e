"""Schedules of saved plans: a port that every store implements.

A tick is a time, in whole Unix seconds, at which a schedule starts its plan. What is decided about a tick is a change
of the schedule's row, and every change is conditional on the row's version. So of all processes that look at a tick,
one decides it, and a process that dies in between leaves a row that says what is to be done.
"""

from typing import Literal, Protocol, runtime_checkable

import msgspec

from planwarden.agent.common.errors import LimitExceeded, StoreError, UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.store import Store

MAX_SCHEDULES = 1_000
"""Of all owners together."""
MAX_RECENT = 20
"""Records of ticks that a schedule keeps; the oldest give way."""

Overlap = Literal["skip", "queue"]
MissedTicks = Literal["latest", "none"]
TickOutcome = Literal["started", "skipped", "missed", "failed"]


class TickRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one tick."""

    tick_at: int
    """Unix seconds."""
    outcome: TickOutcome
    reason: str = ""
    """Why nothing was started."""
    execution_id: str | None = None
    thread_id: str | None = None


class PlanSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule, as stored."""

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
    version: int = 1
    """Grows by one with each change."""
    next_at: int
    """The first tick that nobody has decided yet."""
    starting_at: int | None = None
    """The tick that is being started: decided, and perhaps started, but not yet recorded."""
    queued: tuple[int, ...] = ()
    """Ticks that wait until the last run has ended, oldest first."""
    last_execution: str | None = None
    """The execution that was started last."""
    recent: tuple[TickRecord, ...] = ()
    """Newest last."""

    @property
    def due_at(self) -> float | None:
        """When a process has to look at it: 0 is at once, whatever the clock says; None while it is paused."""
        if self.starting_at is not None:
            return 0.0
        if self.paused_at is not None:
            return None
        return 0.0 if self.queued else float(self.next_at)


class Attendance(Protocol):
    """Which processes start what is due."""

    async def attend(self) -> None:
        """Say, until the store is closed, that this process does; once is enough. Raises `StoreError`."""
        ...

    async def is_attended(self) -> bool:
        """Return whether a living process does."""
        ...


class ScheduleStore(Attendance, Protocol):
    """Laws:

    * Of racing changes to one version of a row exactly one is stored; the others change nothing and return False.
    * A schedule that is added, removed, paused or resumed has its row in the audit, written in the same transaction.
    * Acknowledged means committed.
    """

    async def add(self, schedule: PlanSchedule, entry: AuditEntry) -> None:
        """Store a new one; one whose id is there stays as it is. Raises `LimitExceeded` at `MAX_SCHEDULES`."""
        ...

    async def find(self, schedule_id: str) -> PlanSchedule | None:
        """Raises `StoreError` when the row is damaged."""
        ...

    async def all(self) -> tuple[PlanSchedule, ...]:
        """All of them, oldest first. Raises `StoreError` when a row is damaged."""
        ...

    async def due(self, now: float) -> tuple[PlanSchedule, ...]:
        """Those that a process has to look at, earliest first; damaged rows are left out."""
        ...

    async def change(self, schedule: PlanSchedule, entry: AuditEntry | None = None) -> bool:
        """Store this state if the stored row still has its version, which then grows by one."""
        ...

    async def remove(self, schedule_id: str, entry: AuditEntry) -> bool:
        """Delete it, damaged or not; False when there is none."""
        ...


@runtime_checkable
class HasSchedules(Protocol):
    """A store that also stores schedules."""

    @property
    def schedules(self) -> ScheduleStore: ...


def schedules_of(store: Store) -> ScheduleStore:
    """The schedules beside the store's executions.

    Raises:
        UsageError: this store keeps none.
    """
    if not isinstance(store, HasSchedules):
        raise UsageError(f"{type(store).__name__} keeps no schedules")
    return store.schedules


def too_many_schedules() -> LimitExceeded:
    """The error for one schedule more than the limit."""
    return LimitExceeded(f"there are {MAX_SCHEDULES} schedules, which is the limit; remove one first")


def damaged_schedule(schedule_id: object, error: Exception) -> StoreError:
    """The error for a row that is not what was written."""
    return StoreError(f"schedule {schedule_id!r} is damaged: {error}; remove it and add it again")
