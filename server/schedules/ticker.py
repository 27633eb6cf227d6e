"""The task that starts the runs of schedules; every process that serves has one.

Each second it looks for schedules with something to do. A tick takes three commits: the decision to start it, the start
of the execution, and the record of the start. The decision is conditional on the version of the row, and the start has
a key that only this tick has. So at most one execution is started, by the process that comes first. If that process is
killed in between, another process continues from the row.

Pure functions compute the next state of a schedule and of its ticks. `decide` lets a tick start (`starting_at`), wait
(`queued`), or end without a run; `settle` records what the start led to. Each state is stored before any process acts
on it. If the record of a start was lost, the run is found by the key of the tick.
"""

import logging
from typing import Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from msgspec.structs import replace

from planwarden.agent.common.errors import ExecutionConflict, KeyConflict, PlanwardenError, StoreError, UsageError
from planwarden.agent.core.execution.events import Starter
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import FINISHED, ExecutionState
from planwarden.agent.ports.store import StartedExecution, Store, SystemKey
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.schedules.cron import CronTimes
from planwarden.storage.schedules import MAX_RECENT, PlanSchedule, ScheduleStore, TickOutcome, TickRecord

logger = logging.getLogger(__name__)

LOOK_S = 1.0
JUMP_S = 1.0
"""If the clock goes back by more than this between two looks, it counts as set back."""
PATIENCE_S = 5.0
"""For how long a refused start is tried again, because another process may have the plan or the tools."""
STARTS = 32
"""The most starts that may be under way at the same time."""
CHANNEL = "schedule"
SHOWN_CHARS = 8
"""How many characters of a schedule's id are shown where people read who started an execution."""
LATE_S = 60.0
"""The delay after which a tick is missed even if a process ran: the clock jumped, or the process was suspended."""
GRACE_FOR_OTHERS_S = 10.0
"""How much later than a tick a process that began after it records a miss. Until then, another may start the tick."""
MAX_QUEUED = 100


class PlanRunner(Protocol):
    """Starts saved plans; `Service` implements this protocol."""

    async def run_plan(self, name: str, start: StartOptions) -> ExecutionState | StartedExecution:
        """Start the plan, unless the key has started it before; return the run. Raises `PlanwardenError` if refused."""
        ...


class ScheduleTicker:
    """Starts runs of plans at the ticks of schedules."""

    def __init__(
        self, store: Store, schedules: ScheduleStore, runner: PlanRunner, *, patience_s: float = PATIENCE_S
    ) -> None:
        """Record a start as failed when it has been refused for `patience_s` seconds."""
        self._store = store
        self._schedules = schedules
        self._runner = runner
        self._patience_s = patience_s
        self._present_since: float | None = None
        self._last_look = 0.0
        self._busy: set[str] = set()
        self._refused_since: dict[str, float] = {}
        """For each key of a tick, when the start was first refused, on the steady clock."""
        self._logged: dict[str, str] = {}
        """For each schedule, its last logged error, so that the same error is not logged each second."""
        self._limiter = anyio.CapacityLimiter(STARTS)

    async def run(self) -> None:
        """Start runs until cancelled; another process goes on with what this one began."""
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    await self._schedules.announce_scheduler()
                    await self.look_with(tasks)
                except PlanwardenError as error:
                    logger.error("schedules: %s", error.message)
                # The next look may succeed, so no error ends the loop.
                except Exception:
                    logger.exception("cannot look for schedules; trying again")
                await anyio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once, and return when everything that was due is done."""
        async with anyio.create_task_group() as tasks:
            await self.look_with(tasks)

    async def look_with(self, tasks: TaskGroup) -> None:
        """Look once, and let `tasks` do what is due; leave out each schedule that a task still works on."""
        now = self._store.clock.now()
        if self._present_since is None or now < self._last_look - JUMP_S:
            # A process that begins does not know whether the clock was set back while no process ran.
            self._present_since = min(now, self._present_since or now)
            await self._realign(now)
        self._last_look = now
        for schedule in await self._schedules.due(now):
            if schedule.schedule_id not in self._busy:
                self._busy.add(schedule.schedule_id)
                tasks.start_soon(self._work_on, schedule)

    async def _work_on(self, schedule: PlanSchedule) -> None:
        try:
            async with self._limiter:
                await self._advance(schedule)
            self._logged.pop(schedule.schedule_id, None)
        except PlanwardenError as error:
            self._log(schedule, error.message)
        # A failure of one schedule must not stop the others.
        except Exception as error:
            if self._is_news(schedule, repr(error)):
                logger.exception("schedule %s: cannot go on; trying again", schedule.schedule_id)
        finally:
            self._busy.discard(schedule.schedule_id)

    def _log(self, schedule: PlanSchedule, text: str) -> None:
        if self._is_news(schedule, text):
            logger.error("schedule %s: %s", schedule.schedule_id, text)

    def _is_news(self, schedule: PlanSchedule, text: str) -> bool:
        is_news = self._logged.get(schedule.schedule_id) != text
        self._logged[schedule.schedule_id] = text
        return is_news

    async def _advance(self, schedule: PlanSchedule) -> None:
        if schedule.starting_at is None:
            now = self._store.clock.now()
            running_thread = await find_running_thread(self._store, schedule)
            decided = decide(schedule, now, present_since=self._present_since or now, running_thread=running_thread)
            if decided is None or not await self._schedules.change(decided):
                return
            schedule = replace(decided, version=decided.version + 1)
        if schedule.starting_at is not None:
            await self.start_tick(schedule, schedule.starting_at)

    async def start_tick(self, schedule: PlanSchedule, tick_at: int) -> TickRecord | None:
        """Start the decided tick, and store and return its record; None when the start has to be tried again later."""
        record = await self._start(schedule, tick_at)
        if record is not None and not await self._schedules.change(settle(schedule, record)):
            # Somebody paused the schedule, or another process was faster; the next look reads the row again.
            logger.debug("schedule %s was changed while tick %s started", schedule.schedule_id, tick_at)
        return record

    async def _start(self, schedule: PlanSchedule, tick_at: int) -> TickRecord | None:
        key = build_key(schedule, tick_at)
        earlier_run = await self._find_start(schedule, tick_at, key)
        if earlier_run is not None:
            return earlier_run
        try:
            host = f"schedule {schedule.schedule_id[:SHOWN_CHARS]}"
            person = schedule.asked_by.get(str(tick_at), schedule.created_by)
            starter = Starter(principal=person, channel=CHANNEL, scheduler=schedule.created_by)
            requester = Requester(schedule.owner, host=host, starter=starter)
            start = StartOptions(requester=requester, key=key, inputs=schedule.inputs)
            execution = await self._runner.run_plan(schedule.plan, start)
        except KeyConflict:
            # The plan has changed since another process started this tick.
            return await self._find_start(schedule, tick_at, key)
        except (StoreError, ExecutionConflict):
            raise
        except PlanwardenError as error:
            steady = self._store.clock.steady()
            if steady - self._refused_since.setdefault(key, steady) < self._patience_s:
                return None
            del self._refused_since[key]
            logger.error("schedule %s started nothing: %s", schedule.schedule_id, error.message)
            return TickRecord(tick_at=tick_at, outcome="failed", reason=f"{error.code}: {error.message}"[:500])
        self._refused_since.pop(key, None)
        return _build_record(tick_at, execution.execution_id, execution.thread_id)

    async def _find_start(self, schedule: PlanSchedule, tick_at: int, key: str) -> TickRecord | None:
        start = await self._store.find_start(schedule.owner, str(key))
        return None if start is None else _build_record(tick_at, start.execution_id, start.thread_id)

    async def _realign(self, now: float) -> None:
        """Correct each next tick that is too late because the clock was ahead when the tick was computed."""
        for schedule in await self._schedules.intact():
            try:
                realigned = None if schedule.paused_at is not None else realign(schedule, now)
            except UsageError as error:
                self._log(schedule, error.message)
                continue
            if realigned is not None:
                await self._schedules.change(realigned)
            await anyio.lowlevel.checkpoint()


async def find_running_thread(store: Store, schedule: PlanSchedule) -> str | None:
    """Return the thread of the schedule's last run; None if there was no run, or the last run has finished."""
    if schedule.last_execution is None:
        return None
    header = await store.header(schedule.last_execution)
    return None if header is None or header.status in FINISHED else header.thread_id


def _build_record(tick_at: int, execution_id: str, thread_id: str) -> TickRecord:
    return TickRecord(tick_at=tick_at, outcome="started", execution_id=execution_id, thread_id=thread_id)


def build_key(schedule: PlanSchedule, tick_at: int) -> SystemKey:
    """Return the idempotency key of the run that the tick starts; no other schedule or tick has it."""
    return SystemKey("schedule", schedule.schedule_id, str(tick_at))


def decide(
    schedule: PlanSchedule, now: float, *, present_since: float, running_thread: str | None
) -> PlanSchedule | None:
    """Return the schedule with all ticks up to `now` decided; None when there is nothing to decide yet.

    `present_since` is when the deciding process began to look at schedules, and `running_thread` is the thread of the
    last run while that run is unfinished.

    Raises:
        InvalidArguments: the time zone is no longer known here.
    """
    tick_at = None
    decided = schedule
    if schedule.paused_at is None and schedule.next_at <= now:
        times = CronTimes(schedule.cron, schedule.timezone)
        # The rules of a zone may have changed since the next tick was computed.
        newest = max(times.find_newest(now), schedule.next_at)
        if schedule.missed == "none" and (newest < present_since or now - newest > LATE_S):
            if newest < present_since and now - newest < GRACE_FOR_OTHERS_S:
                return None
            decided = _add_reason(decided, newest, "missed", "no process was there to start it")
        else:
            if newest > schedule.next_at:
                reason = "no process was there to start it; only the newest missed tick starts"
                decided = _add_reason(decided, schedule.next_at, "missed", reason)
            tick_at = newest
        decided = replace(decided, next_at=times.find_next(now))
    decided = _start_or_queue(decided, tick_at, running_thread)
    return None if decided == schedule else decided


def decide_now(schedule: PlanSchedule, now: float, person: str, *, running_thread: str | None) -> PlanSchedule:
    """Return the state after the person asked for a run at this moment, which counts as a tick."""
    with_person = replace(schedule, asked_by={**schedule.asked_by, str(int(now)): person})
    return _start_or_queue(with_person, int(now), running_thread)


def settle(schedule: PlanSchedule, record: TickRecord) -> PlanSchedule:
    """Return the state after the tick `starting_at` was handled, with `record` as the outcome."""
    settled = replace(schedule, starting_at=None, last_execution=record.execution_id or schedule.last_execution)
    return _add_record(settled, record)


def realign(schedule: PlanSchedule, now: float) -> PlanSchedule | None:
    """Return the state with the first tick after `now` as its next; None if `next_at` is not after that tick."""
    next_at = CronTimes(schedule.cron, schedule.timezone).find_next(now)
    return replace(schedule, next_at=next_at) if next_at < schedule.next_at else None


def pause(schedule: PlanSchedule, now: float) -> PlanSchedule:
    """Return the state in which no tick is decided; ticks that wait are dropped. A paused schedule stays as it is."""
    return schedule if schedule.paused_at is not None else replace(schedule, paused_at=now, queued=())


def resume(schedule: PlanSchedule, now: float) -> PlanSchedule:
    """Return the state in which ticks after `now` start runs again. Ticks during the pause do not count as missed."""
    if schedule.paused_at is None:
        return schedule
    next_at = CronTimes(schedule.cron, schedule.timezone).find_next(now)
    return replace(schedule, paused_at=None, next_at=next_at)


def _start_or_queue(schedule: PlanSchedule, tick_at: int | None, running_thread: str | None) -> PlanSchedule:
    """Return the state in which the oldest tick starts if it may; a new tick that may not start waits or is skipped."""
    queued = schedule.queued
    if tick_at is not None and (running_thread is not None or queued):
        if schedule.overlap == "skip":
            return _add_reason(schedule, tick_at, "skipped", f"the last run, thread {running_thread}, is not finished")
        if len(queued) >= MAX_QUEUED:
            return _add_reason(schedule, tick_at, "skipped", f"{MAX_QUEUED} ticks wait already")
        queued, tick_at = (*queued, tick_at), None
    if tick_at is None and queued and running_thread is None:
        tick_at, queued = queued[0], queued[1:]
    return replace(schedule, starting_at=tick_at, queued=queued)


def _add_record(schedule: PlanSchedule, record: TickRecord) -> PlanSchedule:
    asked_by = {str(tick): schedule.asked_by[str(tick)] for tick in schedule.queued if str(tick) in schedule.asked_by}
    return replace(schedule, recent=(*schedule.recent, record)[-MAX_RECENT:], asked_by=asked_by)


def _add_reason(schedule: PlanSchedule, tick_at: int, outcome: TickOutcome, reason: str) -> PlanSchedule:
    return _add_record(schedule, TickRecord(tick_at=tick_at, outcome=outcome, reason=reason))
