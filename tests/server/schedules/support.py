"""Saved plans that start executions and nothing else, and the schedules of tests."""

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import KeyConflict, KeyUsed, PlanwardenError
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.ports.store import StartedExecution, StartRequest, Store
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.schedules.cron import CronTimes
from planwarden.storage.schedules import PlanSchedule, ScheduleStore
from tests.storage.suite import PLAN, Scribe

ADDED = AuditEntry(kind="schedule_added", facts={})


@dataclass
class PlanBook:
    """Implements `PlanRunner`: each run is a real execution in the store that stays running until a test ends it."""

    store: Store
    name: str = "run"
    ends: bool = False
    """Each run is finished at once."""
    refusal: PlanwardenError | None = None
    asked: list[str] = field(default_factory=list[str])
    """The keys, as they came."""
    starters: list[str] = field(default_factory=list[str])
    """Who started each run."""
    runs: dict[str, Scribe] = field(default_factory=dict[str, Scribe])
    """What was started here, by key."""

    async def run_plan(self, name: str, start: StartOptions) -> StartedExecution:
        key, requester = start.key, start.requester
        assert key is not None
        self.asked.append(str(key))
        if self.refusal is not None:
            raise self.refusal
        request = digest({"plan": name, "inputs": dict(start.inputs or {})})
        scribe = Scribe.on(self.store, f"{self.name} {len(self.asked)}", principal=requester.principal, owner=self.name)
        append = scribe.append(
            ev.ExecutionCreated(goal=name, host=requester.host), ev.PlanAccepted(plan=PLAN), ev.StepStarted(step_id="a")
        )
        try:
            scribe.lease = await self.store.append(replace(append, start=StartRequest(key=str(key), request=request)))
        except KeyUsed:
            found = await self.store.find_start(requester.principal, str(key))
            assert found is not None
            if found.request != request:
                raise KeyConflict(details={"executionId": found.execution_id}) from None
            return found
        scribe.execution = append.execution
        self.runs[str(key)] = scribe
        self.starters.append("" if requester.starter is None else requester.starter.principal)
        if self.ends:
            await scribe.finish()
        execution = scribe.execution
        return StartedExecution(execution_id=execution.execution_id, thread_id=execution.thread_id, request=request)


async def add_schedule(store: Store, cron: str = "0 9 * * *", schedule_id: str = "s1", **changes: Any) -> PlanSchedule:
    """Stores a schedule that ticks next after the store's time, and returns it."""
    now = store.clock.now()
    timezone = changes.get("timezone", "UTC")
    given: dict[str, Any] = {
        "plan": "remind",
        "inputs": {},
        "overlap": "skip",
        "missed": "latest",
        "owner": "local",
        "created_by": "ann",
        "created_at": now,
        "next_at": CronTimes(cron, timezone).find_next(now),
        **changes,
        "timezone": timezone,
    }
    made = PlanSchedule(schedule_id=schedule_id, cron=cron, **given)
    await ScheduleStore(store).add(made, ADDED)
    return made


async def read_schedule(store: Store, schedule_id: str = "s1") -> PlanSchedule:
    found = await ScheduleStore(store).find(schedule_id)
    assert found is not None
    return found


async def read_outcomes(store: Store, schedule_id: str = "s1") -> list[tuple[int, str]]:
    """The ticks and what became of them, oldest first."""
    return [(record.tick_at, record.outcome) for record in (await read_schedule(store, schedule_id)).recent]
