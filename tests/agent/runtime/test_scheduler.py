"""What the scheduler does when more is due than one turn takes care of."""

import anyio
import anyio.lowlevel
import pytest

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import Guard, Lease, SuspensionRow
from planwarden.agent.runtime import scheduler
from planwarden.agent.runtime.adoption import Adoption
from planwarden.agent.runtime.known import KnownExecutions
from planwarden.agent.runtime.scheduler import AT_ONCE, MAX_ROWS, Scheduler
from planwarden.agent.runtime.watches import Watches
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from planwarden.tools.registry import Registry
from tests.requirements import requirement
from tests.storage.suite import Scribe

pytestmark = pytest.mark.anyio

COUNT = 2 * MAX_ROWS + 50


class Waits:
    """Waits of one owner that are due at once, one later wait of another owner, and who was woken in which order."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.scribes: dict[str, Scribe] = {}
        self.woken: list[str] = []
        self.now_awake = self.most_awake = 0
        self.is_over = anyio.Event()

    async def begin(self) -> None:
        for number in range(COUNT):
            principal = "bob" if number == COUNT - 1 else "ann"
            scribe = Scribe.on(self.store, f"e{number}", principal=principal)
            await scribe.suspend(f"s{number}", addressee="clock", expires_at=self.clock.now() + number)
            self.scribes[f"s{number}"] = scribe
        self.clock.advance(COUNT)

    async def wake(self, row: SuspensionRow) -> None:
        self.now_awake += 1
        self.most_awake = max(self.most_awake, self.now_awake)
        await anyio.lowlevel.checkpoint()
        self.now_awake -= 1
        timed_out = ev.SuspensionTimedOut(suspension_id=row.suspension_id, outcome="approve")
        guard = Guard(suspension_id=row.suspension_id, digest=row.digest, deadline="passed")
        await self.scribes[row.suspension_id].write(timed_out, guards=[guard])
        self.woken.append(row.suspension_id)
        if len(self.woken) == COUNT:
            self.is_over.set()

    def start(self, execution: ExecutionState, lease: Lease, *, is_current: bool) -> None:
        raise AssertionError("these tests have no abandoned executions")

    async def fail(self, row: SuspensionRow) -> None:
        self.woken.append(row.suspension_id)
        raise PlanwardenError("the row is damaged")

    def scheduler(self, *, fails: bool = False) -> Scheduler:
        async def nothing(_: object = None) -> None:
            """These tests have no grants and no abandoned executions."""

        wake = self.fail if fails else self.wake
        known = KnownExecutions()
        return Scheduler(
            self.store,
            "p1",
            known,
            Watches(),
            adopts=True,
            refresh_grants=nothing,
            wake=wake,
            adoption=Adoption(
                self.store, "p1", Registry(), known, follows=False, concurrency=0, peers=None, start=self.start
            ),
        )


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the next turn waits longer than any test."""
    monkeypatch.setattr(scheduler, "TICK_S", 3600.0)


@requirement("scheduler:fair")
@pytest.mark.usefixtures("long_pause")
async def test_what_is_due_at_once_is_worked_through_without_a_pause_and_in_turn_for_each_owner() -> None:
    waits = Waits()
    await waits.begin()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waits.scheduler().run)
            await waits.is_over.wait()
            tasks.cancel_scope.cancel()
    assert sorted(waits.woken) == sorted(waits.scribes)
    assert waits.woken.index(f"s{COUNT - 1}") < AT_ONCE
    assert 1 < waits.most_awake <= AT_ONCE


async def test_a_turn_that_is_asked_for_begins_when_the_one_before_has_ended() -> None:
    waits, is_held, may_end = Waits(), anyio.Event(), anyio.Event()
    await waits.begin()

    async def hold(row: SuspensionRow) -> None:
        is_held.set()
        await may_end.wait()
        waits.woken.append(row.suspension_id)

    waits.wake = hold
    turns = waits.scheduler()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.tick)
            await is_held.wait()
            tasks.start_soon(turns.tick)
            await anyio.wait_all_tasks_blocked()
            may_end.set()
    assert waits.woken[:MAX_ROWS] == waits.woken[MAX_ROWS:]


@requirement("scheduler:fair")
async def test_rows_that_cannot_be_woken_are_tried_again_only_at_the_usual_pace() -> None:
    waits = Waits()
    await waits.begin()
    turns = waits.scheduler(fails=True)
    assert [await turns.tick() for _ in range(3)] == [True, False, False]
    assert len(waits.woken) == 3 * MAX_ROWS
