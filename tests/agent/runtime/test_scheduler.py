"""Which executions this process works on: what it owns, in which turn, and what it keeps in memory."""

import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import get_args

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.ports.store import Guard, Lease, SuspensionRow
from planwarden.agent.runtime import scheduler
from planwarden.agent.runtime.adoption import Adoption
from planwarden.agent.runtime.execution_cache import MAX_IDLE, MAX_IDLE_BYTES, ChangeNotifier, ExecutionCache
from planwarden.agent.runtime.ownership import (
    RIGHTS,
    TRANSITIONS,
    IllegalOwnershipEvent,
    Ownership,
    OwnershipEvent,
    State,
)
from planwarden.agent.runtime.scheduler import AT_ONCE, MAX_ROWS, Scheduler
from tests.kit import ManualClock, MemoryStore, Registry, apply, ev, requirement
from tests.storage.suite import Scribe

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

    def scheduler(self, wake: Callable[[SuspensionRow], Awaitable[None]]) -> Scheduler:
        def start(execution: ExecutionState, lease: Lease, is_current: bool) -> None:
            raise AssertionError("these tests have no abandoned executions")

        async def nothing(_: object = None) -> None:
            """These tests have no grants."""

        known = ExecutionCache()
        found = Adoption(self.store, "p1", Registry(), known, executes=False, concurrency=0, peers=None, start=start)
        return Scheduler(
            self.store, "p1", known, ChangeNotifier(), adopts=True, refresh_grants=nothing, wake=wake, adoption=found
        )


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
            tasks.start_soon(waits.scheduler(waits.wake).run)
            await waits.is_over.wait()
            tasks.cancel_scope.cancel()
    assert sorted(waits.woken) == sorted(waits.scribes)
    assert waits.woken.index(f"s{COUNT - 1}") < AT_ONCE
    assert 1 < waits.most_awake <= AT_ONCE


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


STATES: tuple[State, ...] = get_args(State)
EVENTS: tuple[OwnershipEvent, ...] = get_args(OwnershipEvent)
LEASE = Lease("e", "p", 1)


def move(ownership: Ownership, event: OwnershipEvent) -> None:
    """Let the event happen as a run lets it happen: what the store says of the lease comes with the lease."""
    if event == "acquired":
        ownership.settle(LEASE, 7.0)
    elif event == "released":
        ownership.settle(None)
    else:
        ownership.apply(event)


@given(st.sampled_from(["unowned", "owned", "unproven"]), st.lists(st.sampled_from(EVENTS), max_size=12))
def test_on_every_way_only_what_the_store_confirmed_is_owned_and_an_illegal_event_changes_nothing(
    start: str, walk: list[OwnershipEvent]
) -> None:
    ownership = Ownership(LEASE if start == "owned" else None, seems_foreign=start == "unproven")
    for event in walk:
        before, lease = ownership.state, ownership.lease
        if event not in TRANSITIONS[before]:
            with pytest.raises(IllegalOwnershipEvent, match=f"{event} cannot happen to an execution that is {before}"):
                move(ownership, event)
            assert (ownership.state, ownership.lease) == (before, lease)
            continue
        move(ownership, event)
        assert ownership.state == TRANSITIONS[before][event]
        if ownership.state == "owned":
            assert ownership.lease is not None and (before == "owned" or event == "acquired")
        assert ownership.lease is None or ownership.state in ("owned", "in_doubt")
        assert ownership.lease is not None or not ownership.is_certain(7.0)
        assert ownership.is_elsewhere == (ownership.state in ("foreign", "unproven", "lost"))


@pytest.mark.parametrize("state", STATES)
def test_nothing_but_commands_is_appended_and_no_job_starts_where_another_process_may_be_owner(state: State) -> None:
    rights, row = RIGHTS[state], TRANSITIONS[state]
    assert rights.starts_jobs == (rights.appends == "everything") == (state in ("unowned", "owned"))
    # Without a lease, an append has to acquire one, or it is refused.
    assert rights.acquires == (state == "unowned")
    # Nothing is appended before it is settled what became of a commit, and the log is not read in another way.
    assert (rights.appends == "nothing") == (state == "in_doubt") == ("advanced" not in row)
    # What was lost comes back only by reading what its owner appended, once nothing of this process runs any more.
    assert "acquired" not in row or state not in ("lost", "foreign")
    assert row.get("advanced", state) == ("unowned" if state in ("foreign", "unproven") else state)
    assert rights.cancels_jobs == ("jobs_ended" in row and rights.appends == "commands")
    assert row.get("ceded") in ("lost", "foreign")


FORK = """
import os
from planwarden.agent.ports.environment import new_id
new_id()
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*(new_id() for _ in range(100)), flush=True)
"""


def test_ids_are_32_hexadecimal_digits_and_a_forked_process_gives_others_than_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60)
    drawn = done.stdout.split()
    assert len({*drawn}) == len(drawn) == 200
    assert all(len(bytes.fromhex(each)) == 16 and each == each.lower() for each in drawn)
