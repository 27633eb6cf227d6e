"""The ticker over every store: each tick starts at most one run, whatever processes live and the clock does."""

from collections.abc import Mapping
from datetime import UTC, datetime

import anyio
import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.requester import Requester
from planwarden.agent.ports.store import Store
from planwarden.server.schedules import ticker as ticker_module
from planwarden.server.schedules import ticks
from planwarden.server.schedules.runner import StartedRun
from planwarden.server.schedules.ticker import ScheduleTicker
from planwarden.storage.clock import ManualClock
from planwarden.storage.ports.schedules import PlanSchedule, ScheduleStore, schedules_of
from tests.requirements import requirement
from tests.server.schedules.support import PlanBook, add_schedule, read_outcomes, read_schedule
from tests.storage.suite import BackEnd, mainly
from tests.support.fakes import Crash

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


def make_ticker(store: Store, book: PlanBook) -> ScheduleTicker:
    return ScheduleTicker(store, schedules_of(store), book)


def go_to(clock: ManualClock, tick_at: float, late_s: float = 0.5) -> None:
    clock.advance(tick_at + late_s - clock.now())


@requirement("schedule:once")
async def test_a_tick_starts_its_plan_with_its_inputs_for_its_owner(store: Store, clock: ManualClock) -> None:
    made = await add_schedule(store, inputs={"month": "May"}, owner="ann")
    book = PlanBook(store)
    ticker = make_ticker(store, book)
    go_to(clock, made.next_at, -1.0)
    await ticker.look()
    assert book.asked == []
    go_to(clock, made.next_at)
    for _ in range(3):
        await ticker.look()
    [key] = book.asked
    assert key == f"planwarden:schedule:s1:{made.next_at}"
    found = await store.find_start("ann", key)
    stored = await read_schedule(store)
    assert found is not None and stored.last_execution == found.execution_id
    assert stored.next_at == made.next_at + DAY_S and stored.starting_at is None
    assert await read_outcomes(store) == [(made.next_at, "started")]


@requirement("schedule:once")
async def test_of_two_processes_at_one_tick_one_starts_it(back_end: BackEnd) -> None:
    stores = [back_end.connect() for _ in range(2)]
    for number in range(20):
        await add_schedule(stores[0], schedule_id=f"s{number}")
    books = [PlanBook(store, name, ends=True) for store, name in zip(stores, "ab", strict=True)]
    tickers = [make_ticker(store, book) for store, book in zip(stores, books, strict=True)]
    for _ in range(3):
        go_to(back_end.clock, (await read_schedule(stores[0], "s0")).next_at)
        async with anyio.create_task_group() as tasks:
            for ticker in tickers * 2:
                tasks.start_soon(ticker.look)
    assert len(await stores[0].executions(None, 100)) == 60
    assert sum(len(book.runs) for book in books) == 60
    for number in range(20):
        outcomes = await read_outcomes(stores[1], f"s{number}")
        assert [outcome for _, outcome in outcomes] == ["started"] * 3


@requirement("schedule:once")
@pytest.mark.parametrize("call", range(1, 4))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_killed_at_any_commit_of_a_tick_leaves_one_run(back_end: BackEnd, call: int, when: str) -> None:
    store = back_end.connect()
    made = await add_schedule(store)
    book = PlanBook(store, "first")
    mortal = Mortal(schedules_of(store), book, call, when)
    ticker = ScheduleTicker(store, mortal, mortal)
    await ticker.look()
    go_to(back_end.clock, made.next_at)
    with pytest.raises(BaseExceptionGroup) as died:
        await ticker.look()
    assert died.group_contains(Crash)
    later = back_end.connect()
    other = PlanBook(later, "second")
    await make_ticker(later, other).look()
    assert len(await store.executions(None, 10)) == 1
    assert await read_outcomes(later) == [(made.next_at, "started")]
    assert (await read_schedule(later)).starting_at is None


class Mortal:
    """The store of schedules and the plans of a process that dies at its n-th commit."""

    def __init__(self, schedules: ScheduleStore, book: PlanBook, dies_at: int, when: str) -> None:
        self._schedules = schedules
        self._book = book
        self._calls = 0
        self._dies = (dies_at, when)
        self.add, self.find, self.all = schedules.add, schedules.find, schedules.all
        self.due, self.remove = schedules.due, schedules.remove
        self.attend, self.is_attended = schedules.attend, schedules.is_attended

    def _die(self, when: str) -> None:
        self._calls += when == "before"
        if self._dies == (self._calls, when):
            raise Crash

    async def change(self, schedule: PlanSchedule, entry: AuditEntry | None = None) -> bool:
        self._die("before")
        changed = await self._schedules.change(schedule)
        self._die("after")
        return changed

    async def run_plan(
        self,
        name: str,
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        requester: Requester,
    ) -> StartedRun:
        self._die("before")
        started = await self._book.run_plan(name, inputs, key=key, wait_seconds=wait_seconds, requester=requester)
        self._die("after")
        return started


@requirement("schedule:overlap")
async def test_skip_starts_nothing_while_the_last_run_is_unfinished_and_says_why(
    store: Store, clock: ManualClock
) -> None:
    made = await add_schedule(store)
    book = PlanBook(store)
    ticker = make_ticker(store, book)
    await ticker.look()
    for number in range(3):
        go_to(clock, made.next_at + number * DAY_S)
        await ticker.look()
    stored = await read_schedule(store)
    assert [record.outcome for record in stored.recent] == ["started", "skipped", "skipped"]
    assert stored.recent[-1].reason == f"the last run, thread {stored.recent[0].thread_id}, is not finished"
    [run] = book.runs.values()
    await run.finish()
    await ticker.look()
    assert len(book.runs) == 1
    go_to(clock, stored.next_at)
    await ticker.look()
    assert len(book.runs) == 2


@requirement("schedule:overlap")
async def test_queue_starts_each_tick_after_the_run_before_has_ended(store: Store, clock: ManualClock) -> None:
    made = await add_schedule(store, overlap="queue")
    book = PlanBook(store)
    ticker = make_ticker(store, book)
    await ticker.look()
    for number in range(3):
        go_to(clock, made.next_at + number * DAY_S)
        await ticker.look()
    assert (await read_schedule(store)).queued == (made.next_at + DAY_S, made.next_at + 2 * DAY_S)
    for number in range(3):
        assert len(book.runs) == number + 1
        await [*book.runs.values()][-1].finish()
        await ticker.look()
        await ticker.look()
    assert await read_outcomes(store) == [(made.next_at + number * DAY_S, "started") for number in range(3)]


@requirement("schedule:overlap")
async def test_a_run_that_waits_for_a_person_is_not_finished(store: Store, clock: ManualClock) -> None:
    made = await add_schedule(store)
    book = PlanBook(store)
    ticker = make_ticker(store, book)
    await ticker.look()
    go_to(clock, made.next_at)
    await ticker.look()
    [run] = book.runs.values()
    await run.suspend("q1")
    go_to(clock, made.next_at + DAY_S)
    await ticker.look()
    assert [outcome for _, outcome in await read_outcomes(store)] == ["started", "skipped"]


@requirement("schedule:overlap")
async def test_the_queue_has_an_end(store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "MAX_QUEUED", 2)
    made = await add_schedule(store, overlap="queue")
    ticker = make_ticker(store, PlanBook(store))
    await ticker.look()
    for number in range(5):
        go_to(clock, made.next_at + number * DAY_S)
        await ticker.look()
    stored = await read_schedule(store)
    assert len(stored.queued) == 2
    assert [record.outcome for record in stored.recent] == ["started", "skipped", "skipped"]
    assert stored.recent[-1].reason == "2 ticks wait already"


@requirement("schedule:missed")
async def test_after_a_downtime_latest_starts_the_newest_missed_tick_and_none_starts_none(
    store: Store, clock: ManualClock
) -> None:
    for missed in ("latest", "none"):
        await add_schedule(store, "*/5 * * * *", missed, missed=missed)
    first = (await read_schedule(store, "none")).next_at
    go_to(clock, first + 1000, 20.0)
    book = PlanBook(store, ends=True)
    ticker = make_ticker(store, book)
    await ticker.look()
    assert [key.split(":")[2:] for key in book.asked] == [["latest", str(first + 900)]]
    assert await read_outcomes(store, "latest") == [(first, "missed"), (first + 900, "started")]
    assert await read_outcomes(store, "none") == [(first + 900, "missed")]
    go_to(clock, first + 1200)
    await ticker.look()
    assert len(book.asked) == 3


@requirement("schedule:missed")
async def test_a_process_that_begins_leaves_a_tick_of_just_now_to_the_one_that_was_there(
    store: Store, clock: ManualClock
) -> None:
    made = await add_schedule(store, missed="none")
    old, new = PlanBook(store, "old"), PlanBook(store, "new")
    present = make_ticker(store, old)
    await present.look()
    go_to(clock, made.next_at)
    await make_ticker(store, new).look()
    await present.look()
    assert (len(old.asked), len(new.asked)) == (1, 0)


@requirement("schedule:clock")
async def test_a_clock_that_jumps_forward_is_a_downtime(store: Store, clock: ManualClock) -> None:
    for missed in ("latest", "none"):
        await add_schedule(store, "0 * * * *", missed, missed=missed)
    book = PlanBook(store, ends=True)
    ticker = make_ticker(store, book)
    await ticker.look()
    clock.jump(10 * DAY_S + 600)
    await ticker.look()
    assert [key.split(":")[2] for key in book.asked] == ["latest"]


@requirement("schedule:clock")
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_clock_that_jumps_back_neither_loses_nor_doubles_ticks(
    store: Store, clock: ManualClock, restarts: bool
) -> None:
    await add_schedule(store, "0 * * * *", missed="none")
    book = PlanBook(store, ends=True)
    ticker = make_ticker(store, book)
    expected: list[int] = []

    async def pass_hours(count: int) -> None:
        for _ in range(count):
            clock.advance(3600 - clock.now() % 3600 + 0.5)
            expected.append(int(clock.now()) // 3600 * 3600)
            await ticker.look()

    await ticker.look()
    await pass_hours(3)
    clock.jump(-2 * 3600 - 100)
    if restarts:
        ticker = make_ticker(store, book)
    await ticker.look()
    await pass_hours(5)
    assert len(expected) == 8
    assert [int(key.split(":")[3]) for key in book.runs] == sorted(set(expected))


@requirement("schedule:clock")
async def test_a_clock_that_was_far_ahead_does_not_stop_a_schedule(store: Store, clock: ManualClock) -> None:
    await add_schedule(store, "0 * * * *")
    book = PlanBook(store, ends=True)
    ticker = make_ticker(store, book)
    await ticker.look()
    clock.jump(365 * DAY_S)
    await ticker.look()
    clock.jump(-365 * DAY_S)
    await ticker.look()
    assert len(book.runs) == 1
    clock.advance(3600)
    await ticker.look()
    assert len(book.runs) == 2


@requirement("schedule:once")
async def test_a_start_that_is_refused_is_left_to_others_for_a_while_and_then_recorded(
    store: Store, clock: ManualClock
) -> None:
    made = await add_schedule(store)
    book = PlanBook(store, refusal=UsageError("there is no plan 'remind'"))
    ticker = make_ticker(store, book)
    await ticker.look()
    go_to(clock, made.next_at)
    await ticker.look()
    assert await read_outcomes(store) == []
    other = PlanBook(store, refusal=None)
    clock.advance(ticker_module.PATIENCE_S)
    await ticker.look()
    [record] = (await read_schedule(store)).recent
    assert record.outcome == "failed" and record.reason == "invalid_arguments: there is no plan 'remind'"
    go_to(clock, made.next_at + DAY_S)
    await ticker.look()
    await make_ticker(store, other).look()
    assert len(other.runs) == 1
    assert [outcome for _, outcome in await read_outcomes(store)] == ["failed", "started"]


@requirement("schedule:once")
async def test_a_store_that_fails_at_a_start_is_asked_again(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    made = await add_schedule(store)
    book = PlanBook(store, refusal=StoreError("the disk is full"))
    ticker = make_ticker(store, book)
    await ticker.look()
    go_to(clock, made.next_at)
    for _ in range(3):
        await ticker.look()
        clock.advance(60)
    assert caplog.text.count("the disk is full") == 1
    book.refusal = None
    await ticker.look()
    assert await read_outcomes(store) == [(made.next_at, "started")]


@requirement("schedule:once")
async def test_a_plan_that_changed_between_a_start_and_its_record_is_not_started_again(
    store: Store, clock: ManualClock
) -> None:
    made = await add_schedule(store)
    book = PlanBook(store)
    begun = await read_schedule(store)
    key = ticks.build_key(begun, made.next_at)
    await book.run_plan("remind", {"other": 1}, key=key, wait_seconds=0, requester=Requester("local"))
    ticker = make_ticker(store, book)
    await ticker.look()
    go_to(clock, made.next_at)
    await ticker.look()
    assert len(book.runs) == 1 and await read_outcomes(store) == [(made.next_at, "started")]


@requirement("schedule:times")
@pytest.mark.parametrize("back_end", mainly("postgres"), indirect=True)
async def test_ticks_of_a_year_start_once_each_through_both_changes_of_the_clocks(
    store: Store, clock: ManualClock
) -> None:
    clock.advance(datetime(2028, 1, 31, tzinfo=UTC).timestamp() - clock.now())
    await add_schedule(store, "30 2 * * *", timezone="Europe/Berlin", overlap="queue")
    book = PlanBook(store, ends=True)
    ticker = make_ticker(store, book)
    await ticker.look()
    for _ in range(300):
        go_to(clock, (await read_schedule(store)).next_at)
        await ticker.look()
    days = [datetime.fromtimestamp(int(key.split(":")[3]), UTC).date() for key in book.runs]
    assert len(set(days)) == len(days) == 300 and (days[-1] - days[0]).days == 299


@requirement("schedule:once")
async def test_a_removed_or_paused_schedule_starts_nothing(store: Store, clock: ManualClock) -> None:
    made = await add_schedule(store)
    schedules = schedules_of(store)
    assert await schedules.change(ticks.pause(made, clock.now()))
    book = PlanBook(store)
    ticker = make_ticker(store, book)
    await ticker.look()
    go_to(clock, made.next_at + 3 * DAY_S)
    await ticker.look()
    assert book.asked == []
    assert await schedules.change(ticks.resume(await read_schedule(store), clock.now()))
    await ticker.look()
    assert book.asked == []
    go_to(clock, made.next_at + 4 * DAY_S)
    await ticker.look()
    assert await read_outcomes(store) == [(made.next_at + 4 * DAY_S, "started")]
