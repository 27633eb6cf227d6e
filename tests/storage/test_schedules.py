"""Schedules over every store there is."""

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import LimitExceeded, UsageError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.store import Store
from planwarden.storage.ports import schedules as port
from planwarden.storage.ports.processes import ProcessFacts, registry_of
from planwarden.storage.ports.schedules import PlanSchedule, TickRecord, schedules_of
from tests.kit import ManualClock, MemoryStore, requirement
from tests.storage.suite import BackEnd
from tests.support.fakes import WatchedStore

pytestmark = pytest.mark.anyio

ADDED = AuditEntry(kind="schedule_added", facts={"plan": "remind"})
PAUSED = AuditEntry(kind="schedule_paused", facts={"plan": "remind"})
REMOVED = AuditEntry(kind="schedule_removed", facts={"plan": "remind"})


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


async def kinds(store: Store) -> list[str]:
    return [row.entry.kind for row in await store.audit_rows()]


@requirement("store:schedules")
async def test_a_schedule_comes_back_as_it_was_stored_through_every_connection(back_end: BackEnd) -> None:
    first, second = (schedules_of(back_end.connect()) for _ in range(2))
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


@requirement("store:schedules")
async def test_a_schedule_whose_id_is_there_is_not_added_again(store: Store) -> None:
    schedules = schedules_of(store)
    await schedules.add(schedule(), ADDED)
    await schedules.add(schedule(cron="1 1 1 1 1"), ADDED)
    assert await schedules.all() == (schedule(),) and await kinds(store) == ["schedule_added"]


@requirement("store:schedules", "store:one-winner")
async def test_of_racing_changes_to_one_version_one_is_stored(back_end: BackEnd) -> None:
    connections = [back_end.connect() for _ in range(2)]
    stores = [schedules_of(connection) for connection in connections]
    await stores[0].add(schedule(), ADDED)
    won: list[int] = []

    async def change(number: int, seen: PlanSchedule) -> None:
        if await stores[number % 2].change(replace(seen, starting_at=number), PAUSED):
            won.append(number)

    for round_ in range(5):
        seen = await stores[round_ % 2].find("s1")
        assert seen is not None and seen.version == round_ + 1
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(change, number, seen)
        stored = await stores[0].find("s1")
        assert stored == replace(seen, starting_at=won[-1], version=round_ + 2) and len(won) == round_ + 1
    assert await kinds(connections[0]) == ["schedule_added", *["schedule_paused"] * 5]


@requirement("store:schedules")
async def test_due_schedules_are_those_that_tick_wait_or_are_being_started(store: Store) -> None:
    schedules = schedules_of(store)
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


@requirement("store:schedules", "store:atomic")
async def test_a_removed_schedule_is_gone_and_stays_so(store: Store) -> None:
    schedules = schedules_of(store)
    await schedules.add(schedule(), ADDED)
    assert await schedules.remove("s1", REMOVED)
    assert not await schedules.remove("s1", REMOVED)
    assert not await schedules.change(schedule(starting_at=1))
    assert await schedules.all() == ()
    assert await kinds(store) == ["schedule_added", "schedule_removed"]


@requirement("store:schedules")
async def test_one_schedule_more_than_the_limit_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planwarden.storage.sql.schedules.MAX_SCHEDULES", 2)
    monkeypatch.setattr(port, "MAX_SCHEDULES", 2)
    schedules = schedules_of(store)
    for name in ("s1", "s2"):
        await schedules.add(schedule(name), ADDED)
    with pytest.raises(LimitExceeded, match="there are 2 schedules, which is the limit; remove one first"):
        await schedules.add(schedule("s3"), ADDED)
    assert len(await schedules.all()) == 2 and await kinds(store) == ["schedule_added"] * 2


async def test_a_store_without_schedules_is_said_so() -> None:
    async def ignore(_: object) -> None:
        """Nothing is hooked."""

    with pytest.raises(UsageError, match="keeps no schedules"):
        schedules_of(WatchedStore(MemoryStore(ManualClock()), ignore))


@requirement("store:schedules")
async def test_every_process_sees_whether_a_living_one_starts_what_is_due(back_end: BackEnd) -> None:
    reader, ticking = schedules_of(back_end.connect()), back_end.connect()
    assert not await reader.is_attended()
    registry = registry_of(ticking)
    if registry is not None:
        facts = ProcessFacts(owner="o", role="both", host="h", pid=1, version="1", started_at=1.0, policy="p", tools={})
        await registry.publish(facts)
    await schedules_of(ticking).attend()
    assert await reader.is_attended()
