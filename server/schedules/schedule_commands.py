"""Adds, lists, pauses, resumes and removes schedules, and starts a run of a schedule at once.

People do this at a terminal or in the browser, and no MCP tool can. The audit records each change and who made it.
"""

import unicodedata
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, StaleRevision, UnknownPlan, UnknownSchedule, UsageError
from planwarden.agent.common.struct import copy_fields
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.execution.audit import AuditEntry, Kind
from planwarden.agent.core.plan.inputs import complete_inputs
from planwarden.agent.ports.environment import new_id
from planwarden.agent.ports.store import Store
from planwarden.server.schedules import ticker
from planwarden.server.schedules.cron import CronTimes, find_zone
from planwarden.server.schedules.ticker import PlanRunner, ScheduleTicker, find_running_thread
from planwarden.server.views.escaping import complete_id
from planwarden.server.views.instants import to_utc
from planwarden.server.views.listing import SavedPlanLine, ScheduleView, TickView
from planwarden.storage.schedules import MissedTicks, Overlap, PlanSchedule, ScheduleStore, TickRecord

MAX_NAME_CHARS = 200
SHOWN_TICKS = 3
MAX_TRIES = 20
"""The most tries of one change; a try fails if a process changes the row in between, as a tick does."""


class ScheduledPlans(PlanRunner, Protocol):
    """Saved plans that can be listed and started; `Service` is one."""

    async def plans(self) -> Sequence[SavedPlanLine]: ...


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule that a person wants."""

    plan: str
    cron: str
    timezone: str
    inputs: dict[str, JsonValue]
    overlap: Overlap
    missed: MissedTicks
    owner: str


class ScheduleBook:
    """The schedules of one store, for one person."""

    def __init__(self, store: Store, plans: ScheduledPlans, person: str, *, channel: str) -> None:
        """The audit names `person` and the channel. Raises `UsageError` when the store keeps no schedules."""
        self._store = store
        self._schedules = ScheduleStore(store)
        self._plans = plans
        self._person = person
        self._channel = channel

    async def add(self, request: ScheduleRequest, schedule_id: str | None = None) -> PlanSchedule:
        """Store and return a new schedule, which ticks from now on. If `schedule_id` exists, return that one unchanged.

        Raises:
            InvalidArguments: the cron expression, the time zone, the owner or the inputs cannot be used.
            UnknownPlan: there is no such plan.
            LimitExceeded: there are too many schedules.
        """
        if schedule_id is not None and (existing := await self._schedules.find(schedule_id)) is not None:
            return existing
        now = self._store.clock.now()
        times = CronTimes(request.cron, request.timezone)
        _check_name(request.owner, "owner")
        plans = {plan.name: plan for plan in await self._plans.plans()}
        if request.plan not in plans:
            hint = did_you_mean(request.plan, plans) or f"; there are {', '.join([*plans][:20]) or 'none'}"
            raise UnknownPlan(f"there is no saved plan {request.plan[:MAX_NAME_CHARS]!r}{hint}")
        # This is only a check; each run fills in the defaults that its plan has at that time.
        complete_inputs(plans[request.plan].inputs, request.inputs)
        schedule = copy_fields(
            PlanSchedule,
            request,
            schedule_id=schedule_id or new_id(),
            cron=" ".join(request.cron.split()),
            created_by=self._person,
            created_at=now,
            next_at=times.find_next(now),
        )
        entry = self._build_entry(
            "schedule_added",
            schedule.schedule_id,
            plan=schedule.plan,
            cron=schedule.cron,
            timezone=schedule.timezone,
            owner=schedule.owner,
        )
        await self._schedules.add(schedule, entry)
        # If the same request arrived twice at the same time, the other one may have stored its schedule first.
        return schedule if schedule_id is None else await self._load(schedule_id)

    async def list(self) -> tuple[PlanSchedule, ...]:
        """Return all schedules, oldest first."""
        return await self._schedules.all()

    async def has_scheduler(self) -> bool:
        """Return whether any running process starts the runs that are due."""
        return await self._schedules.has_scheduler()

    async def find_id(self, beginning: str) -> str:
        """Return the id with this beginning, even if its row is damaged. Raises `UsageError` for none or several."""
        ids = await self._schedules.list_ids()
        schedule_id = complete_id(beginning, ids, "schedule")
        if schedule_id not in ids:
            raise _unknown(beginning)
        return schedule_id

    async def find(self, beginning: str) -> PlanSchedule:
        """Return the schedule whose id has this beginning. Raises `UsageError` and `StoreError`."""
        return await self._load(await self.find_id(beginning))

    async def pause(self, schedule_id: str) -> PlanSchedule:
        """Start no runs until `resume`, drop waiting ticks, and return the schedule. Change nothing if it is paused."""
        return await self._change(schedule_id, ticker.pause, "schedule_paused")

    async def resume(self, schedule_id: str) -> PlanSchedule:
        """End the pause, and return the schedule. Later ticks start runs again; those during the pause never do."""
        return await self._change(schedule_id, ticker.resume, "schedule_resumed")

    async def remove(self, schedule_id: str) -> None:
        """Delete the schedule; runs that it has started go on. Raises `UnknownSchedule`."""
        if not await self._schedules.remove(schedule_id, self._build_entry("schedule_removed", schedule_id)):
            raise _unknown(schedule_id)

    async def run_now(self, schedule_id: str, *, version: int | None = None) -> TickRecord | None:
        """Start a run as if a tick were due now. Return the record of that tick; None if it waits for an earlier run.

        If nothing was started, the record says why: the previous run is unfinished, or the plan cannot start.
        `version` is the version that the schedule had when the person saw it.

        Raises:
            UnknownSchedule: the schedule is gone.
            StaleRevision: the schedule has another version; nothing was started.
        """
        for _ in range(MAX_TRIES):
            schedule = await self._load(schedule_id)
            if version is not None and schedule.version != version:
                raise StaleRevision(f"schedule {schedule_id!r} has changed since it was shown; nothing was started")
            if schedule.starting_at is None:
                running_thread = await find_running_thread(self._store, schedule)
                now = self._store.clock.now()
                decided = ticker.decide_now(schedule, now, self._person, running_thread=running_thread)
                if not await self._schedules.change(decided, self._build_entry("schedule_run", schedule_id)):
                    continue
                if decided.starting_at is None:
                    return decided.recent[-1] if decided.queued == schedule.queued else None
                schedule = replace(decided, version=decided.version + 1)
            assert schedule.starting_at is not None
            schedule_ticker = ScheduleTicker(self._store, self._schedules, self._plans, patience_s=0.0)
            return await schedule_ticker.start_tick(schedule, schedule.starting_at)
        raise _busy(schedule_id)

    def build_view(self, schedule: PlanSchedule) -> ScheduleView:
        """Return the schedule as people and programs see it. Raises `InvalidArguments` if its zone is unknown here."""
        try:
            zone, times = find_zone(schedule.timezone), CronTimes(schedule.cron, schedule.timezone)
        except InvalidArguments as error:
            raise InvalidArguments(f"schedule {schedule.schedule_id!r} cannot be used: {error.message}") from None

        def build_time(seconds: float) -> datetime:
            return datetime.fromtimestamp(seconds, zone)

        upcoming: Sequence[int] = ()
        if schedule.paused_at is None:
            upcoming = (schedule.next_at, *times.list_next(schedule.next_at, SHOWN_TICKS - 1))
        started = [record.thread_id for record in schedule.recent if record.thread_id is not None]
        return copy_fields(
            ScheduleView,
            schedule,
            created_at=to_utc(schedule.created_at),
            paused_at=None if schedule.paused_at is None else to_utc(schedule.paused_at),
            next_ticks=tuple(map(build_time, upcoming)),
            queued_ticks=tuple(map(build_time, schedule.queued)),
            last_thread_id=started[-1] if started else None,
            recent=tuple(
                copy_fields(TickView, record, tick_at=build_time(record.tick_at), reason=record.reason or None)
                for record in reversed(schedule.recent)
            ),
        )

    async def _load(self, schedule_id: str) -> PlanSchedule:
        schedule = await self._schedules.find(schedule_id)
        if schedule is None:
            raise _unknown(schedule_id)
        return schedule

    async def _change(
        self, schedule_id: str, change: Callable[[PlanSchedule, float], PlanSchedule], kind: Kind
    ) -> PlanSchedule:
        for _ in range(MAX_TRIES):
            schedule = await self._load(schedule_id)
            changed = change(schedule, self._store.clock.now())
            if changed == schedule or await self._schedules.change(changed, self._build_entry(kind, schedule_id)):
                return changed
        raise _busy(schedule_id)

    def _build_entry(self, kind: Kind, schedule_id: str, **facts: JsonValue) -> AuditEntry:
        who: dict[str, JsonValue] = {"principal": self._person, "channel": self._channel}
        return AuditEntry(kind=kind, facts={"schedule": schedule_id, **who, **facts})


def _check_name(name: str, what: str) -> None:
    if not name.strip() or len(name) > MAX_NAME_CHARS:
        raise InvalidArguments(f"'{what}' must have 1 to {MAX_NAME_CHARS} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise InvalidArguments(f"'{what}' has a control character")


def _unknown(schedule_id: str) -> UnknownSchedule:
    return UnknownSchedule(f"there is no schedule {schedule_id[:64]!r}; `planwarden schedule list` shows the schedules")


def _busy(schedule_id: str) -> UsageError:
    return UsageError(f"other processes keep changing schedule {schedule_id!r}; try again")
