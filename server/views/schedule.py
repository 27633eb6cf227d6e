"""Views of schedules: what ticks next, and what became of the last ticks. Times are in the zone of the schedule."""

from datetime import datetime

import msgspec
from pydantic import JsonValue

NOT_ATTENDED = "no server or worker runs on this store now, so nothing starts until one does"


class TickView(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one tick."""

    tick_at: datetime
    outcome: str
    """`started`, `skipped`, `missed` or `failed`."""
    reason: str | None
    """Why nothing was started."""
    thread_id: str | None
    execution_id: str | None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule."""

    schedule_id: str
    plan: str
    """Name of the saved plan that it starts."""
    cron: str
    timezone: str
    inputs: dict[str, JsonValue]
    overlap: str
    """What a tick does while the last run is unfinished: `skip` or `queue`."""
    missed: str
    """What starts after a time without a server: the `latest` missed tick, or `none`."""
    owner: str
    """To whom the runs belong."""
    created_by: str
    created_at: datetime
    paused_at: datetime | None
    next_ticks: tuple[datetime, ...]
    """The next ones; empty while it is paused."""
    queued_ticks: tuple[datetime, ...]
    """Those that wait until the last run has ended."""
    last_thread_id: str | None
    """Thread of the run that was started last."""
    recent: tuple[TickView, ...]
    """The last ticks, newest first."""
