"""What the scheduler does when more is due than one turn takes care of, or than this process can continue."""

import subprocess
import sys
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.core.state import ExecutionState, new_execution
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.peers import Peers
from planwarden.agent.ports.store import Guard, Lease, Store, SuspensionRow
from planwarden.agent.runtime import adoption, scheduler
from planwarden.agent.runtime.adoption import SKIPPED_S, Adoption, StartRun
from planwarden.agent.runtime.change_notifier import ChangeNotifier
from planwarden.agent.runtime.execution_cache import MAX_IDLE, MAX_IDLE_BYTES, ExecutionCache
from planwarden.agent.runtime.scheduler import AT_ONCE, CLAIMED_AT_ONCE, MAX_ROWS, Scheduler
from planwarden.tools.registry import Registry
from tests.kit import ManualClock, MemoryStore, requirement
from tests.storage.suite import Scribe

pytestmark = pytest.mark.anyio

COUNT = 2 * MAX_ROWS + 50


def build_scheduler(
    store: Store,
    wake: Callable[[SuspensionRow], Awaitable[None]],
    start: StartRun,
    *,
    concurrency: int,
    peers: Peers | None,
) -> Scheduler:
    async def nothing(_: object = None) -> None:
        """These tests have no grants."""

    known = ExecutionCache()
    found = Adoption(
        store, "p1", Registry(), known, follows=peers is not None, concurrency=concurrency, peers=peers, start=start
    )
    return Scheduler(
        store, "p1", known, ChangeNotifier(), adopts=True, refresh_grants=nothing, wake=wake, adoption=found
    )


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
        return build_scheduler(self.store, self.fail if fails else self.wake, self.start, concurrency=0, peers=None)


@requirement("scheduler:fair")
async def test_what_is_due_at_once_is_worked_through_without_a_pause_and_in_turn_for_each_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whoever waits for the next turn waits longer than any test.
    monkeypatch.setattr(scheduler, "TICK_S", 3600.0)
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


FOREIGN = 4 * CLAIMED_AT_ONCE
REMEMBERED = 2 * CLAIMED_AT_ONCE
TURNS = 3 * FOREIGN // CLAIMED_AT_ONCE


class Others:
    """Other processes that may have the tools which this one has not."""

    generation = 0
    is_outdated = False

    def is_current(self, definition: ToolDefinition) -> bool:
        return True


class Office:
    """Executions that nobody owns: many whose tool is not here, and the newest one, which anybody can continue."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.taken: list[str] = []

    async def begin(self) -> None:
        for number in range(FOREIGN):
            await self._abandon(Scribe.on(self.store, f"e{number}", owner="gone"))
        scribe = Scribe.on(self.store, "mine", owner="gone")
        await scribe.start()
        await scribe.write(ev.ToolCallIntended(call_id="a:1", arguments={}), ev.ToolReturned(call_id="a:1"))
        await self._abandon(scribe, ev.StepCompleted(step_id="a", validation="passed"))

    async def _abandon(self, scribe: Scribe, *events: ev.Event) -> None:
        await (scribe.write(*events) if events else scribe.start())
        assert scribe.lease is not None
        await self.store.release(scribe.lease)

    def start(self, execution: ExecutionState, lease: Lease, *, is_current: bool) -> None:
        self.taken.append(execution.execution_id)

    def scheduler(self) -> Scheduler:
        async def wake(row: SuspensionRow) -> None:
            raise AssertionError("these tests have no questions")

        return build_scheduler(self.store, wake, self.start, concurrency=100, peers=Others())

    async def count_claims(self) -> int:
        """How often an execution changed its owner since it was abandoned."""
        headers = await self.store.walk("", FOREIGN + 1)
        return sum(header.fence - 1 for header in headers)


@requirement("scheduler:fair")
async def test_more_executions_than_a_process_remembers_and_cannot_continue_do_not_keep_it_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adoption, "MAX_SKIPPED", REMEMBERED)
    office = Office()
    await office.begin()
    turns = office.scheduler()
    has_more = [await turns.tick() for _ in range(TURNS)]
    assert has_more == [True] + [False] * (TURNS - 1)
    assert office.taken == ["mine"]
    assert await office.count_claims() == CLAIMED_AT_ONCE + 1
    office.clock.advance(SKIPPED_S)
    assert await turns.tick(), "it looks again after a while"


def make_state(name: str, argument: JsonValue) -> ExecutionState:
    call = PlannedCall(tool_name="take", arguments={"x": argument})
    step = PlanStep(step_id="a", description="d", step_type="tool", required_tools=("take",), tool_calls=(call,))
    state = new_execution(name, f"thread of {name}", "local")
    for event in (ev.ExecutionCreated(goal="g"), ev.PlanAccepted(plan=Plan(steps=(step,)))):
        state = apply(state, event, 1.0)
    return state


@requirement("engine:idle-bytes")
@pytest.mark.parametrize("beside", [None, 10**30, "\ud800"], ids=ascii)
def test_idle_executions_with_large_plans_are_dropped_by_their_bytes(beside: JsonValue) -> None:
    known = ExecutionCache()
    for number in range(150):
        known.cache_idle(make_state(f"e{number}", ["x" * 250_000, beside]))
    names = [*known.idle]
    assert 10 < len(names) < MAX_IDLE_BYTES // 250_000 and names == [f"e{n}" for n in range(150 - len(names), 150)]
    assert known.find_idle_in_thread("thread of e0") is None and known.find_idle_in_thread("thread of e149") is not None
    # One is kept however large it is, and small ones by number.
    known.cache_idle(make_state("large", "x" * (MAX_IDLE_BYTES + 1)))
    assert [*known.idle] == ["large"]
    for number in range(MAX_IDLE + 1):
        known.cache_idle(make_state(f"e{number}", 1))
    assert len(known.idle) == MAX_IDLE and "large" not in known.idle


FORK = """
import os
from planwarden.agent.common.ids import RandomIds
ids = RandomIds()
ids.new()
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*(ids.new() for _ in range(100)), flush=True)
"""


def test_ids_are_32_hexadecimal_digits_and_a_forked_process_gives_others_than_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60)
    drawn = done.stdout.split()
    assert len({*drawn}) == len(drawn) == 200
    assert all(len(bytes.fromhex(each)) == 16 and each == each.lower() for each in drawn)
