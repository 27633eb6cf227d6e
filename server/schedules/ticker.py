"""The task that starts what schedules say, in every process that serves.

Each second it looks for schedules with something to do. A tick takes three commits: the decision to start it, the
start of the execution, and the record of that. The decision is conditional on the version of the row, and the start has
a key that only this tick has. So at most one execution is started, by whichever process comes first, and a process that
is killed in between leaves a row with which another one goes on.
"""

import logging

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from msgspec.structs import replace

from planwarden.agent.common.errors import ExecutionConflict, KeyConflict, PlanwardenError, StoreError, UsageError
from planwarden.agent.core.execution.events import Starter
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import FINISHED
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.schedules import ticks
from planwarden.server.schedules.ticks import PlanRunner
from planwarden.storage.schedules import PlanSchedule, ScheduleStore, TickRecord

logger = logging.getLogger(__name__)

LOOK_S = 1.0
JUMP_S = 1.0
"""The clock was set back if it shows so much less than at the last look."""
PATIENCE_S = 5.0
"""A start that was refused is tried again for so long: another process may have the plan or the tools."""
STARTS = 32
"""Starts at the same time."""
CHANNEL = "schedule"
SHOWN_CHARS = 8
"""Of a schedule's id, where people read who started an execution."""


class ScheduleTicker:
    """Starts runs of plans at the ticks of schedules."""

    def __init__(
        self, store: Store, schedules: ScheduleStore, runner: PlanRunner, *, patience_s: float = PATIENCE_S
    ) -> None:
        """A start that was refused is recorded as failed after `patience_s` seconds."""
        self._store = store
        self._schedules = schedules
        self._runner = runner
        self._patience_s = patience_s
        self._present_since: float | None = None
        self._last_look = 0.0
        self._busy: set[str] = set()
        self._refused_since: dict[str, float] = {}
        """By key: the steady time of the first refusal."""
        self._logged: dict[str, str] = {}
        """By schedule: the last error, which is not logged each second."""
        self._limiter = anyio.CapacityLimiter(STARTS)

    async def run(self) -> None:
        """Start runs until cancelled; the next process goes on with what was begun."""
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    await self._schedules.attend()
                    await self.look_with(tasks)
                except PlanwardenError as error:
                    logger.error("schedules: %s", error.message)
                # Whatever it was, the next look may succeed.
                except Exception:
                    logger.exception("cannot look for schedules; trying again")
                await anyio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once, and return when everything that was due is done."""
        async with anyio.create_task_group() as tasks:
            await self.look_with(tasks)

    async def look_with(self, tasks: TaskGroup) -> None:
        """Look once, and do what is due in `tasks`; a schedule that is still being worked on is left out."""
        now = self._store.clock.now()
        if self._present_since is None or now < self._last_look - JUMP_S:
            # A process that begins does not know whether the clock was set back while there was none.
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
        # One schedule must not end the task of all.
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
            decided = ticks.decide(
                schedule, now, present_since=self._present_since or now, running_thread=running_thread
            )
            if decided is None or not await self._schedules.change(decided):
                return
            schedule = replace(decided, version=decided.version + 1)
        if schedule.starting_at is not None:
            await self.start_tick(schedule, schedule.starting_at)

    async def start_tick(self, schedule: PlanSchedule, tick_at: int) -> TickRecord | None:
        """Start the tick that was decided and record it. None when it has to be tried again later."""
        record = await self._start(schedule, tick_at, ticks.build_key(schedule, tick_at))
        if record is not None and not await self._schedules.change(ticks.settle(schedule, record)):
            # Somebody paused it, or another process was faster; the next look finds which.
            logger.debug("schedule %s was changed while tick %s started", schedule.schedule_id, tick_at)
        return record

    async def _start(self, schedule: PlanSchedule, tick_at: int, key: str) -> TickRecord | None:
        earlier_run = await self._find_start(schedule, tick_at, key)
        if earlier_run is not None:
            return earlier_run
        try:
            host = f"schedule {schedule.schedule_id[:SHOWN_CHARS]}"
            starter = Starter(principal=schedule.created_by, channel=CHANNEL)
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
        """Let schedules tick again whose next tick is too late, because the clock was ahead when it was computed."""
        schedules = await self._schedules.all()
        if not schedules:
            return
        for schedule in schedules:
            try:
                realigned = None if schedule.paused_at is not None else ticks.realign(schedule, now)
            except UsageError as error:
                self._log(schedule, error.message)
                continue
            if realigned is not None:
                await self._schedules.change(realigned)
            await anyio.lowlevel.checkpoint()


async def find_running_thread(store: Store, schedule: PlanSchedule) -> str | None:
    """Return the thread of the schedule's last run while that is unfinished."""
    if schedule.last_execution is None:
        return None
    header = await store.header(schedule.last_execution)
    return None if header is None or header.status in FINISHED else header.thread_id


def _build_record(tick_at: int, execution_id: str, thread_id: str) -> TickRecord:
    return TickRecord(tick_at=tick_at, outcome="started", execution_id=execution_id, thread_id=thread_id)
