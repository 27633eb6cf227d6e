"""Each tick starts at most one run, whatever processes live and the clock does, in every process that serves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import planwarden
from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.ports.store import StartedExecution
from planwarden.server.schedules import ticker as ticker_module
from planwarden.server.schedules.ticker import ScheduleTicker
from planwarden.server.settings.configuration import ProcessRole, load_settings
from planwarden.storage.schedules import PlanSchedule, ScheduleStore
from tests import kit
from tests.kit import Ledger, ManualClock, MemoryStore, Requester, StartOptions, Store, ev, plan, requirement, tool_step
from tests.server.schedules.support import PlanBook, add_schedule, read_outcomes, read_schedule
from tests.storage.suite import BackEnd
from tests.support.fakes import Crash

DAY_S = 86_400.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Store:
    """What stores keep of schedules is tested with the stores; only tests about processes run over each of them."""
    return MemoryStore(clock)


def make_ticker(store: Store, book: PlanBook) -> ScheduleTicker:
    return ScheduleTicker(store, ScheduleStore(store), book)


def go_to(clock: ManualClock, tick_at: float, late_s: float = 0.5) -> None:
    clock.advance(tick_at + late_s - clock.now())


@dataclass
class Process:
    """A process that has looked once before the first tick, and what it started."""

    store: Store
    clock: ManualClock
    made: PlanSchedule
    book: PlanBook
    ticker: ScheduleTicker

    @classmethod
    async def begin(cls, store: Store, clock: ManualClock, cron: str = "0 9 * * *", **options: Any) -> "Process":
        """Begin with one schedule; `ends` and `refusal` are the book's, the other options the schedule's."""
        kept = {name: options.pop(name) for name in ("ends", "refusal") if name in options}
        made = await add_schedule(store, cron, **options)
        book = PlanBook(store, **kept)
        process = cls(store, clock, made, book, make_ticker(store, book))
        await process.ticker.look()
        return process

    async def look_at(self, day: int, late_s: float = 0.5) -> None:
        """Look right after the tick of that day, the first of which is 0."""
        go_to(self.clock, self.made.next_at + day * DAY_S, late_s)
        await self.ticker.look()

    async def outcomes(self) -> list[str]:
        return [outcome for _, outcome in await read_outcomes(self.store)]


@requirement("schedule:once")
async def test_of_two_processes_at_one_tick_one_starts_it(back_end: BackEnd) -> None:
    stores = [back_end.connect() for _ in range(2)]
    for number in range(10):
        await add_schedule(stores[0], schedule_id=f"s{number}")
    books = [PlanBook(store, name, ends=True) for store, name in zip(stores, "ab", strict=True)]
    tickers = [make_ticker(store, book) for store, book in zip(stores, books, strict=True)]
    for _ in range(3):
        go_to(back_end.clock, (await read_schedule(stores[0], "s0")).next_at)
        async with anyio.create_task_group() as tasks:
            for ticker in tickers * 2:
                tasks.start_soon(ticker.look)
    assert len(await stores[0].executions(None, 100)) == sum(len(book.runs) for book in books) == 30
    for number in range(10):
        outcomes = await read_outcomes(stores[1], f"s{number}")
        assert [outcome for _, outcome in outcomes] == ["started"] * 3


@requirement("schedule:once")
@pytest.mark.parametrize("call", range(1, 4))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_killed_at_any_commit_of_a_tick_leaves_one_run(back_end: BackEnd, call: int, when: str) -> None:
    store = back_end.connect()
    made = await add_schedule(store)
    book = PlanBook(store, "first")
    mortal = Mortal(store, book, call, when)
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


class Mortal(ScheduleStore):
    """The store of schedules and the plans of a process that dies at its n-th commit."""

    def __init__(self, store: Store, book: PlanBook, dies_at: int, when: str) -> None:
        super().__init__(store)
        self._book = book
        self._calls = 0
        self._dies = (dies_at, when)

    def _die(self, when: str) -> None:
        self._calls += when == "before"
        if self._dies == (self._calls, when):
            raise Crash

    async def change(self, schedule: PlanSchedule, entry: AuditEntry | None = None) -> bool:
        self._die("before")
        changed = await super().change(schedule)
        self._die("after")
        return changed

    async def run_plan(self, name: str, start: StartOptions) -> StartedExecution:
        self._die("before")
        started = await self._book.run_plan(name, start)
        self._die("after")
        return started


@requirement("schedule:overlap")
@pytest.mark.parametrize("waits", [False, True], ids=["it runs", "it waits for a person"])
async def test_skip_starts_nothing_while_the_last_run_is_unfinished_and_says_why(
    store: Store, clock: ManualClock, waits: bool
) -> None:
    process = await Process.begin(store, clock)
    for day in range(3):
        await process.look_at(day)
        if waits and day == 0:
            await next(iter(process.book.runs.values())).suspend("q1")
    stored = await read_schedule(store)
    assert await process.outcomes() == ["started", "skipped", "skipped"]
    assert stored.recent[-1].reason == f"the last run, thread {stored.recent[0].thread_id}, is not finished"
    if waits:
        return
    [run] = process.book.runs.values()
    await run.finish()
    await process.ticker.look()
    assert len(process.book.runs) == 1
    await process.look_at(3)
    assert len(process.book.runs) == 2


@requirement("schedule:overlap")
async def test_queue_starts_each_tick_after_the_run_before_has_ended_and_has_an_end(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker_module, "MAX_QUEUED", 2)
    process = await Process.begin(store, clock, overlap="queue")
    for day in range(4):
        await process.look_at(day)
    first, runs = process.made.next_at, process.book.runs
    stored = await read_schedule(store)
    assert stored.queued == (first + DAY_S, first + 2 * DAY_S)
    assert await process.outcomes() == ["started", "skipped"] and stored.recent[-1].reason == "2 ticks wait already"
    for day in range(3):
        assert len(runs) == day + 1
        await [*runs.values()][-1].finish()
        await process.ticker.look()
        await process.ticker.look()
    started = [tick_at for tick_at, outcome in await read_outcomes(store) if outcome == "started"]
    assert started == [first + day * DAY_S for day in range(3)]


@requirement("schedule:missed", "schedule:clock")
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
    # A clock that jumps forward is a downtime.
    clock.jump(10 * DAY_S + 120)
    await ticker.look()
    assert [key.split(":")[2] for key in book.asked[3:]] == ["latest"]


@requirement("schedule:missed")
async def test_a_process_that_begins_leaves_a_tick_of_just_now_to_another(store: Store, clock: ManualClock) -> None:
    old, new = await Process.begin(store, clock, missed="none"), PlanBook(store, "new")
    go_to(clock, old.made.next_at)
    await make_ticker(store, new).look()
    await old.ticker.look()
    assert (len(old.book.asked), len(new.asked)) == (1, 0)


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


@requirement("schedule:once")
async def test_a_start_that_is_refused_is_left_to_others_for_a_while_and_then_recorded_and_a_failing_store_asked_again(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    process = await Process.begin(store, clock, refusal=UsageError("there is no plan 'remind'"))
    await process.look_at(0)
    assert await read_outcomes(store) == []
    clock.advance(ticker_module.PATIENCE_S)
    await process.ticker.look()
    [record] = (await read_schedule(store)).recent
    assert record.outcome == "failed" and record.reason == "invalid_arguments: there is no plan 'remind'"
    await process.look_at(1)
    other = PlanBook(store, ends=True)
    await make_ticker(store, other).look()
    assert len(other.runs) == 1
    process.book.refusal = StoreError("the disk is full")
    await process.look_at(2)
    for _ in range(3):
        await process.ticker.look()
        clock.advance(60)
    assert caplog.text.count("the disk is full") == 1
    process.book.refusal = None
    await process.ticker.look()
    assert await process.outcomes() == ["failed", "started", "started"]


@requirement("schedule:once")
async def test_a_plan_that_changed_between_start_and_record_starts_once(store: Store, clock: ManualClock) -> None:
    process = await Process.begin(store, clock)
    key = ticker_module.build_key(await read_schedule(store), process.made.next_at)
    await process.book.run_plan("remind", StartOptions(requester=Requester("local"), key=key, inputs={"other": 1}))
    await process.look_at(0)
    assert len(process.book.runs) == 1 and await read_outcomes(store) == [(process.made.next_at, "started")]


@requirement("schedule:once")
async def test_a_paused_schedule_starts_nothing(store: Store, clock: ManualClock) -> None:
    process = await Process.begin(store, clock)
    schedules = ScheduleStore(store)
    assert await schedules.change(ticker_module.pause(await read_schedule(store), clock.now()))
    await process.look_at(3)
    assert process.book.asked == []
    assert await schedules.change(ticker_module.resume(await read_schedule(store), clock.now()))
    await process.ticker.look()
    assert process.book.asked == []
    await process.look_at(4)
    assert await read_outcomes(store) == [(process.made.next_at + 4 * DAY_S, "started")]


@requirement("schedule:overlap")
async def test_a_run_that_is_wanted_during_a_pause_starts_after_the_last(store: Store, clock: ManualClock) -> None:
    process = await Process.begin(store, clock, overlap="queue")
    await process.look_at(0)
    schedules, runs = ScheduleStore(store), process.book.runs
    assert await schedules.change(ticker_module.pause(await read_schedule(store), clock.now()))
    paused = await read_schedule(store)
    thread = await ticker_module.find_running_thread(store, paused)
    assert await schedules.change(ticker_module.decide_now(paused, clock.now() + 1, "bob", running_thread=thread))
    await process.look_at(3)
    assert len(runs) == 1
    await [*runs.values()][-1].finish()
    await process.ticker.look()
    assert process.book.starters == ["ann", "bob"] and (await read_schedule(store)).due_at is None
    assert not (await read_schedule(store)).asked_by


@requirement("schedule:once")
@pytest.mark.parametrize("role", ["both", "front", "worker"])
async def test_a_process_of_any_role_starts_what_is_due(
    tmp_path: Path, role: ProcessRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker_module, "LOOK_S", 0.0)
    step = tool_step("a", "note", {"text": {"$from": "inputs", "pointer": "/month"}})
    inputs: kit.Json = {"type": "object", "properties": {"month": {"type": "string"}}}
    kit.save_plan(tmp_path, "remind", {**plan(step), "inputs": inputs})
    store, ledger = MemoryStore(ManualClock()), Ledger()
    settings = load_settings(home=tmp_path, environment={})
    made = await add_schedule(store, inputs={"month": "May"}, owner="ann")
    clock = store.clock
    assert isinstance(clock, ManualClock)
    async with planwarden.Warden(settings=settings, tools=ledger.tools(), store=store, role=role):
        clock.advance(made.next_at - clock.now() + 0.5)
        with anyio.fail_after(60):
            while not await read_outcomes(store):
                await anyio.lowlevel.checkpoint()
            while role != "front" and not ledger.lines:
                await anyio.lowlevel.checkpoint()
    [header] = await store.executions(None, 10)
    assert header.principal == "ann"
    created = (await store.read(header.execution_id))[0].event
    assert isinstance(created, ev.ExecutionCreated) and created.host == "schedule s1"
    assert await read_outcomes(store) == [(made.next_at, "started")]
    stored = await read_schedule(store)
    assert stored.last_execution == header.execution_id and stored.starting_at is None
    assert ledger.lines == ([] if role == "front" else ["note May"])
