"""What starts, over every store there is: keys of starts, plans that are unfinished, and schedules."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import LimitExceeded, StoreError, ThreadMovedOn
from planwarden.agent.ports.store import Append, StartRequest, Store
from planwarden.storage.schedules import PlanSchedule, ScheduleStore, TickRecord
from planwarden.storage.sql.processes import ProcessFacts, registry_of
from tests.kit import AuditEntry, SqliteStore, ev, requirement
from tests.storage.suite import PLAN, BackEnd, Scribe, kinds

KEYED = StartRequest(key="monday", request="digest of the request", plan="digest of the plan")
UNKEYED = StartRequest(plan="digest of the plan", is_only=True)
ENDED = ev.ExecutionFailed(code="x", message="y")
ADDED = AuditEntry(kind="schedule_added", facts={"plan": "remind"})
PAUSED = AuditEntry(kind="schedule_paused", facts={"plan": "remind"})
REMOVED = AuditEntry(kind="schedule_removed", facts={"plan": "remind"})


def creation(scribe: Scribe, start: StartRequest) -> Append:
    return replace(scribe.append(ev.ExecutionCreated(goal="go"), ev.PlanAccepted(plan=PLAN)), start=start)


async def create(store: Store, execution_id: str, start: StartRequest, *, principal: str = "ann") -> Scribe:
    scribe = Scribe.on(store, execution_id, principal=principal)
    append = creation(scribe, start)
    scribe.lease, scribe.execution = await store.append(append), append.execution
    return scribe


@requirement("store:starts", "store:atomic")
async def test_what_goes_on_from_an_execution_starts_only_while_that_is_the_last_one_unchanged(store: Store) -> None:
    first = await create(store, "e1", StartRequest())
    await first.write(ENDED)
    thread = first.execution.thread_id

    def start(execution_id: str, **fields: Any) -> Append:
        scribe = Scribe.on(store, execution_id, thread_id=thread)
        return creation(scribe, StartRequest(**fields))

    version = first.execution.version
    for wrong in (("e1", version - 1), ("e1", version + 1), ("nothing", version)):
        with pytest.raises(ThreadMovedOn):
            await store.append(start("e2", after=wrong[0], after_version=wrong[1], key="k"))
        assert await store.header("e2") is None and await store.find_start("ann", "k") is None
    with pytest.raises(ThreadMovedOn):
        await store.append(creation(Scribe.on(store, "e2"), StartRequest(after="e1", after_version=version)))
    append = start("e2", after="e1", after_version=version)
    lease = await store.append(append)
    with pytest.raises(ThreadMovedOn):
        await store.append(start("e3", after="e1", after_version=version))
    second = Scribe.on(store, "e2", thread_id=thread)
    second.execution, second.lease = append.execution, lease
    await second.write(ENDED)
    with pytest.raises(ThreadMovedOn):
        await store.append(start("e3", after="e1", after_version=version))
    await store.append(start("e3", after="e2", after_version=second.execution.version))


def schedule(schedule_id: str = "s1", **changes: Any) -> PlanSchedule:
    made = PlanSchedule(
        schedule_id=schedule_id,
        plan="remind",
        cron="0 9 * * 1",
        timezone="Europe/Berlin",
        inputs={"city": "Łódź", "nul": "\0", "many": [10**30, 0.5, None]},
        overlap="skip",
        missed="latest",
        owner="ann",
        created_by="bob",
        created_at=1_800_000_000.5,
        next_at=1_800_000_060,
    )
    return replace(made, **changes)


@requirement("store:schedules")
async def test_a_schedule_comes_back_as_it_was_stored_through_every_connection(back_end: BackEnd) -> None:
    first, second = (ScheduleStore(back_end.connect()) for _ in range(2))
    plain = schedule("s2")
    full = schedule(
        "s1",
        paused_at=3.5,
        starting_at=7,
        queued=(1, 2),
        last_execution="e1",
        recent=(
            TickRecord(tick_at=1, outcome="started", execution_id="e1", thread_id="t1"),
            TickRecord(tick_at=2, outcome="failed", reason="Łódź \0"),
        ),
    )
    for made in (plain, full):
        await first.add(made, ADDED)
    assert await second.all() == (plain, full)
    assert await second.find("s1") == full and await second.find("s3") is None


@requirement("store:schedules", "store:atomic")
async def test_a_schedule_is_added_and_removed_once(store: Store) -> None:
    schedules = ScheduleStore(store)
    for cron in ("0 9 * * 1", "1 1 1 1 1"):
        await schedules.add(schedule(cron=cron), ADDED)
    assert await schedules.all() == (schedule(),)
    assert [await schedules.remove("s1", REMOVED) for _ in range(2)] == [True, False]
    assert not await schedules.change(schedule(starting_at=1))
    assert await schedules.all() == () and await kinds(store) == ["schedule_added", "schedule_removed"]


@requirement("store:schedules")
async def test_due_schedules_are_those_that_tick_wait_or_are_being_started(store: Store) -> None:
    schedules = ScheduleStore(store)
    for made in (
        schedule("later", next_at=200),
        schedule("ticks", next_at=90),
        schedule("paused", next_at=1, paused_at=0.0),
        schedule("begun", next_at=300, starting_at=60, paused_at=0.0),
        schedule("waits", next_at=300, queued=(70, 80)),
    ):
        await schedules.add(made, ADDED)
    assert [found.schedule_id for found in await schedules.due(100.0)] == ["begun", "waits", "ticks"]
    assert [found.schedule_id for found in await schedules.due(5.0)] == ["begun", "waits"]
    begun = await schedules.find("begun")
    assert begun is not None and await schedules.change(replace(begun, starting_at=None))
    assert [found.schedule_id for found in await schedules.due(100.0)] == ["waits", "ticks"]


@requirement("store:schedules")
async def test_a_damaged_record_is_named_with_what_to_do_and_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    store = SqliteStore.open(path)
    schedules = ScheduleStore(store)
    for change in ("''", "'[]'", "'{}'", "json_set(body, '$.cron', 1)", "json_set(body, '$.new', 1)", "body || 'x'"):
        for name in ("s1", "s2"):
            await schedules.add(schedule(name, next_at=1), ADDED)
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(f"UPDATE records SET body = {change} WHERE id = 's1'")
        for read in (schedules.all(), schedules.find("s1")):
            with pytest.raises(StoreError, match=r"the schedule 's1' is damaged: .*; remove it and add it again"):
                await read
        assert [found.schedule_id for found in await schedules.due(2.0)] == ["s2"]
        assert await schedules.remove("s1", REMOVED)
    await store.close()


@requirement("store:schedules")
async def test_one_schedule_more_than_the_limit_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planwarden.storage.schedules.MAX_SCHEDULES", 1)
    schedules = ScheduleStore(store)
    await schedules.add(schedule("s1"), ADDED)
    with pytest.raises(LimitExceeded, match="there are 1 schedules, which is the limit; remove one first"):
        await schedules.add(schedule("s2"), ADDED)
    assert len(await schedules.all()) == 1 and await kinds(store) == ["schedule_added"]


@requirement("store:schedules")
async def test_every_process_sees_whether_a_living_one_starts_what_is_due(back_end: BackEnd) -> None:
    reader, ticking = ScheduleStore(back_end.connect()), back_end.connect()
    assert not await reader.has_scheduler()
    registry = registry_of(ticking)
    if registry is not None:
        facts = ProcessFacts(owner="o", role="both", host="h", pid=1, version="1", started_at=1.0, policy="p", tools={})
        await registry.publish(facts)
    await ScheduleStore(ticking).announce_scheduler()
    assert await reader.has_scheduler()
