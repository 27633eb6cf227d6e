"""What becomes of a tick: pure functions from one state of a schedule to the next.

A tick goes two ways. `decide` lets it start (`starting_at`), wait (`queued`), or end without a run; `settle` records
what the start led to. The store keeps each state before anything follows from it, so a process that finds `starting_at`
starts that tick, under a key of the tick's own (`build_key`). After a start whose record was lost, it finds the run.
"""

from typing import Protocol

from msgspec.structs import replace

from planwarden.agent.ports.store import SystemKey
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.schedules.cron import CronTimes
from planwarden.storage.schedules import MAX_RECENT, PlanSchedule, TickOutcome, TickRecord


class StartedRun(Protocol):
    """The execution of a saved plan; `planwarden.agent.core.execution.state.ExecutionState` is one."""

    @property
    def execution_id(self) -> str: ...

    @property
    def thread_id(self) -> str: ...


class PlanRunner(Protocol):
    """Starts saved plans; `Service` is one."""

    async def run_plan(self, name: str, start: StartOptions) -> StartedRun:
        """Start the plan once for each key of the principal.

        Raises:
            PlanwardenError: it cannot start.
        """
        ...


LATE_S = 60.0
"""A tick that is decided later than this was missed though a process was there: the clock jumped, or it stood still."""
OTHERS_S = 10.0
"""For so long a process leaves it to others to say that they missed a tick from before it began."""
MAX_QUEUED = 100


def build_key(schedule: PlanSchedule, tick_at: int) -> SystemKey:
    """Return the idempotency key of the run that the tick starts, unique to both."""
    return SystemKey("schedule", schedule.schedule_id, str(tick_at))


def decide(
    schedule: PlanSchedule, now: float, *, present_since: float, running_thread: str | None
) -> PlanSchedule | None:
    """Return the state after the ticks up to `now` were decided; None when there is nothing to decide yet.

    `present_since` is when the deciding process began to look at schedules, and `running_thread` is the thread of the
    last run while that is unfinished.

    Raises:
        InvalidArguments: the time zone is not known here any more.
    """
    if schedule.starting_at is not None:
        return None
    tick_at = None
    decided = schedule
    if schedule.paused_at is None and schedule.next_at <= now:
        times = CronTimes(schedule.cron, schedule.timezone)
        # The rules of a zone may have changed since the next tick was computed.
        newest = max(times.find_newest(now), schedule.next_at)
        if schedule.missed == "none" and _is_missed(newest, now, present_since):
            if newest < present_since and now - newest < OTHERS_S:
                return None
            decided = add_record(decided, newest, "missed", "no process was there to start it")
        else:
            if newest > schedule.next_at:
                reason = "no process was there to start it; only the newest missed tick starts"
                decided = add_record(decided, schedule.next_at, "missed", reason)
            tick_at = newest
        decided = replace(decided, next_at=times.find_next(now))
    decided = _place(decided, tick_at, running_thread)
    return None if decided == schedule else decided


def decide_now(schedule: PlanSchedule, now: float, *, running_thread: str | None) -> PlanSchedule:
    """Return the state after somebody asked for a run at this moment, which counts as a tick."""
    return _place(schedule, int(now), running_thread)


def settle(schedule: PlanSchedule, record: TickRecord) -> PlanSchedule:
    """Return the state after the start of `starting_at` led to the record."""
    settled = replace(schedule, starting_at=None, last_execution=record.execution_id or schedule.last_execution)
    return _append_record(settled, record)


def realign(schedule: PlanSchedule, now: float) -> PlanSchedule | None:
    """Return the state with the next tick after `now`, if it has a later one, because the clock was set back."""
    next_at = CronTimes(schedule.cron, schedule.timezone).find_next(now)
    return replace(schedule, next_at=next_at) if next_at < schedule.next_at else None


def pause(schedule: PlanSchedule, now: float) -> PlanSchedule:
    """Return the state in which no tick is decided; ticks that wait are given up."""
    return replace(schedule, paused_at=now, queued=())


def resume(schedule: PlanSchedule, now: float) -> PlanSchedule:
    """Return the state in which ticks after `now` are decided. Those while it was paused were not missed."""
    next_at = CronTimes(schedule.cron, schedule.timezone).find_next(now)
    return replace(schedule, paused_at=None, next_at=next_at)


def add_record(schedule: PlanSchedule, tick_at: int, outcome: TickOutcome, reason: str) -> PlanSchedule:
    """Return the state that says why the tick started nothing."""
    return _append_record(schedule, TickRecord(tick_at=tick_at, outcome=outcome, reason=reason))


def _is_missed(tick_at: int, now: float, present_since: float) -> bool:
    return tick_at < present_since or now - tick_at > LATE_S


def _place(schedule: PlanSchedule, tick_at: int | None, running_thread: str | None) -> PlanSchedule:
    """Start the oldest tick that may start; the new one waits, or ends without a run, when it may not."""
    queued = schedule.queued
    if tick_at is not None and (running_thread is not None or queued):
        if schedule.overlap == "skip":
            return add_record(schedule, tick_at, "skipped", f"the last run, thread {running_thread}, is not finished")
        if len(queued) >= MAX_QUEUED:
            return add_record(schedule, tick_at, "skipped", f"{MAX_QUEUED} ticks wait already")
        queued, tick_at = (*queued, tick_at), None
    if tick_at is None and queued and running_thread is None:
        tick_at, queued = queued[0], queued[1:]
    return replace(schedule, starting_at=tick_at, queued=queued)


def _append_record(schedule: PlanSchedule, record: TickRecord) -> PlanSchedule:
    return replace(schedule, recent=(*schedule.recent, record)[-MAX_RECENT:])
