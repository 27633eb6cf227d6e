"""Two engines on one store, as two processes on one file: answers, cancellations, takeovers and late results.

Nothing here waits for time: calls are held at gates, clocks are set, and the clockwork is turned by hand.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

from planwarden.agent.approval.answers import Decision
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.tool import Effect
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.agent.runtime.silence import UNLIMITED_S
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION
from planwarden.tools.registry import Registry
from tests.crash.scenario import PERSON, PRINCIPAL, engine_on
from tests.requirements import requirement
from tests.storage.suite import BACK_END_NAMES, BACK_ENDS, LEASE_S, BackEnd
from tests.support.fakes import EffectLedger, SilentStore, StoreCall, WatchedStore, recording_tool

pytestmark = pytest.mark.anyio

YES = Decision(approved=True)


@dataclass
class Gate:
    """Where a call is held; one for each process, so that only one of them is."""

    is_reached: anyio.Event = field(default_factory=anyio.Event)
    may_pass: anyio.Event = field(default_factory=anyio.Event)

    async def hold(self) -> None:
        self.is_reached.set()
        await self.may_pass.wait()


class World:
    """One store, one ledger, and processes that are engines of their own."""

    def __init__(self, back_end: BackEnd, folder: Path) -> None:
        self.back_end = back_end
        self.clock = back_end.clock
        self._store = back_end.connect()
        self.ledger = EffectLedger(folder / "effects")

    @asynccontextmanager
    async def process(
        self,
        gate: Gate | None = None,
        *,
        effect: Effect = "effect",
        adopts: bool = True,
        on: Callable[[Store], Store] = lambda store: store,
    ) -> AsyncGenerator[Engine]:
        """An engine whose tool `slow` is held at the gate before it does anything."""
        slow = recording_tool(self.ledger, "slow", effect=effect, before=gate.hold if gate else None)
        mail = recording_tool(self.ledger, "mail")
        tools = Registry([slow, mail, DISPLAY_CONFIRMATION])
        async with engine_on(on(self.back_end.connect()), tools, CallerModel(), adopts=adopts) as engine:
            yield engine

    async def outlast_silence(self, engine: Engine, running: ExecutionState) -> None:
        """Time passes in which a silent owner renews nothing, until `engine` has taken over from it."""
        self.clock.advance(LEASE_S)
        while await self.fence(running) == 1:
            await engine.tick()
            self.clock.advance(UNLIMITED_S)
            await anyio.lowlevel.checkpoint()

    async def fence(self, execution: ExecutionState) -> int:
        """How often the execution was taken over, from 1 on."""
        header = await self._store.header(execution.execution_id)
        assert header is not None
        return header.fence

    async def stored(self, execution: ExecutionState) -> ExecutionState:
        return await load_execution(self.back_end.connect(), execution)

    async def kinds(self, execution: ExecutionState) -> list[str]:
        recorded = await self.back_end.connect().read(execution.execution_id)
        return [type(entry.event).__name__ for entry in recorded]


@pytest.fixture(params=BACK_END_NAMES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    back_end = BACK_ENDS[request.param](tmp_path / "home")
    try:
        with anyio.fail_after(60):
            yield World(back_end, tmp_path)
    finally:
        await back_end.close()


def step(step_id: str, tool: str, *after: str, arguments: JsonValue = None) -> dict[str, JsonValue]:
    calls: JsonValue = [{"toolName": tool, "arguments": arguments or {}}]
    return {"id": step_id, "description": step_id, "dependencies": [*after], "toolCalls": calls}


ASK = step("ask", "displayConfirmation", arguments={"action": "go on?"})
ASK_SOON = step("ask", "displayConfirmation", arguments={"action": "go on?", "timeoutSeconds": 1})
SLOW, MAIL = step("slow", "slow"), step("mail", "mail", "ask")


async def start(engine: Engine, *steps: dict[str, JsonValue], thread_id: str = "t") -> ExecutionState:
    plan, _ = parse_plan({"todoList": list(steps)}, author="caller", tools=engine.tool_facts())
    return await engine.create(
        thread_id=thread_id, requester=Requester(PRINCIPAL), goal=None, plan=plan, options=ev.Options()
    )


async def answer(engine: Engine, execution: ExecutionState, decision: Decision = YES) -> ExecutionState:
    """Answer the one open question."""
    execution = await engine.find(execution.execution_id)
    [asked] = execution.open_suspensions
    answered, _ = await engine.answer(execution, asked.question.suspension_id, decision, PERSON)
    return answered


async def until_step(engine: Engine, execution: ExecutionState, step_id: str, status: str) -> None:
    """Returns when the step has the status in this engine's eyes."""
    while (await engine.find(execution.execution_id)).steps[step_id].status != status:
        await anyio.lowlevel.checkpoint()


# --- answers and cancellations from elsewhere ---


@requirement("engine:two-processes")
async def test_an_answer_recorded_elsewhere_reaches_the_owner_while_another_branch_still_runs(world: World) -> None:
    gate = Gate()
    async with world.process(gate) as owner, world.process() as other:
        running = await start(owner, SLOW, ASK, MAIL)
        await gate.is_reached.wait()
        answered = await answer(other, running)
        assert answered.status == "running"
        await owner.tick()
        await until_step(owner, running, "mail", "completed")
        assert world.ledger.tools_run() == ["mail"]
        gate.may_pass.set()
        done = await owner.wait(running, 60)
    assert (done.status, world.ledger.tools_run()) == ("completed", ["mail", "slow"])


@requirement("engine:two-processes")
async def test_an_answer_for_an_execution_that_another_process_owns_is_recorded_before_anything_else_is_asked(
    world: World,
) -> None:
    gate = Gate()
    watched: list[WatchedStore] = []

    async def watch(_: StoreCall) -> None:
        """Only the names of the calls count."""

    def on(store: Store) -> Store:
        watched.append(WatchedStore(store, watch))
        return watched[0]

    async with world.process(gate) as owner, world.process(on=on) as other:
        running = await start(owner, SLOW, ASK, MAIL)
        await gate.is_reached.wait()
        execution = await other.find(running.execution_id)
        before = len(watched[0].calls)
        await answer(other, execution)
        made = [call for call in watched[0].calls[before:] if call in ("append", "claim", "read")]
        assert made in (["append"], ["append", "claim"])
        gate.may_pass.set()
        await owner.tick()
        done = await owner.wait(running, 60)
    assert (done.status, sorted(world.ledger.tools_run())) == ("completed", ["mail", "slow"])


@requirement("engine:two-processes")
async def test_an_answer_for_an_execution_whose_owner_has_just_gone_is_carried_out_here(world: World) -> None:
    gate, store = Gate(), world.back_end.connect()
    async with world.process(gate, effect="read") as gone:
        running = await start(gone, SLOW, ASK, MAIL)
        await gate.is_reached.wait()
    leases = [await store.claim(running.execution_id, "somebody")]

    async def give_up(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "before") and leases:
            lease = leases.pop()
            assert lease is not None
            await store.release(lease)

    async with world.process(effect="read", adopts=False, on=lambda inner: WatchedStore(inner, give_up)) as command:
        # It looks for what it knows and nobody owns only now, until a clock that nobody moves goes on.
        await command.tick()
        done = await command.wait(await answer(command, running), 60)
    assert (done.status, sorted(world.ledger.tools_run())) == ("completed", ["mail", "slow"])


@requirement("engine:two-processes")
async def test_an_answer_to_a_suspended_execution_is_continued_by_whoever_took_it(world: World) -> None:
    async with world.process() as first, world.process() as second:
        asked = await first.wait(await start(first, ASK, MAIL), 60)
        assert asked.status == "suspended"
        done = await second.wait(await answer(second, asked), 60)
        await first.tick()
        assert (await first.find(asked.execution_id)) == done
    assert (done.status, world.ledger.tools_run()) == ("completed", ["mail"])


@requirement("engine:two-processes")
async def test_a_watcher_in_another_process_is_woken_by_the_end(world: World) -> None:
    gate = Gate()
    async with world.process(gate) as owner, world.process() as other:
        running = await start(owner, SLOW)
        await gate.is_reached.wait()
        seen: list[ExecutionState] = []

        async def watch() -> None:
            seen.append(await other.wait(running, 60))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await other.tick()
            gate.may_pass.set()
            done = await owner.wait(running, 60)
            while not seen:
                await anyio.lowlevel.checkpoint()
                await other.tick()
            assert seen == [done] and done.status == "completed"


@requirement("engine:two-processes")
async def test_a_commit_between_looking_and_waiting_is_not_missed(world: World) -> None:
    gate = Gate()
    finish = anyio.Event()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("log", "after") and not finish.is_set():
            finish.set()
            gate.may_pass.set()
            while (await world.stored(running)).status == "running":
                await anyio.lowlevel.checkpoint()
            await other.tick()

    async with world.process(gate) as owner, world.process(on=lambda store: WatchedStore(store, watch)) as other:
        running = await start(owner, SLOW)
        await gate.is_reached.wait()
        elsewhere = await start(owner, ASK, thread_id="t2")
        async with anyio.create_task_group() as tasks:
            # Somebody else watches too, so the clockwork looks and believes to have told everybody.
            tasks.start_soon(other.wait_for_change, await owner.wait(elsewhere, 60))
            await anyio.lowlevel.checkpoint()
            done = await other.wait(running, 60)
            assert done.status == "completed"
            tasks.cancel_scope.cancel()


@requirement("engine:two-processes")
async def test_what_another_process_acknowledged_is_shown_although_something_of_ones_own_is_being_committed(
    world: World,
) -> None:
    late = Gate()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "before"):
            await late.hold()

    async with world.process() as first, world.process(on=lambda store: WatchedStore(store, watch)) as second:
        asked = await first.wait(await start(first, ASK, MAIL), 60)
        known = await second.find(asked.execution_id)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, second, known)
            await late.is_reached.wait()
            done = await first.wait(await answer(first, asked), 60)
            shown = await second.find(asked.execution_id)
            assert shown == await second.wait(shown, 60) == done
            late.may_pass.set()
    assert world.ledger.tools_run() == ["mail"]


@requirement("engine:two-processes")
async def test_a_cancellation_from_another_process_stops_the_owners_call(world: World) -> None:
    gate = Gate()
    async with world.process(gate) as owner, world.process() as other:
        running = await start(owner, SLOW, ASK, MAIL)
        await gate.is_reached.wait()
        known = await other.find(running.execution_id)
        await other.cancel(known, "enough")
        await owner.tick()
        done = await owner.wait(running, 60)
    assert (done.status, done.cancel_reason, world.ledger.tools_run()) == ("cancelled", "enough", [])
    assert done.steps["slow"].calls[0].status == "outcome_unknown"
    assert done.open_suspensions == ()


@requirement("engine:two-processes")
async def test_a_deadline_that_another_process_saw_pass_reaches_the_owner(world: World) -> None:
    gate = Gate()
    async with world.process(gate) as owner, world.process() as other:
        running = await start(owner, SLOW, ASK_SOON, MAIL)
        await gate.is_reached.wait()
        # Less than after which a process whose connection is slow would be taken for dead.
        world.clock.advance(1)
        await other.tick()
        await owner.tick()
        await until_step(owner, running, "mail", "skipped")
        gate.may_pass.set()
        done = await owner.wait(running, 60)
    assert (done.status, world.ledger.tools_run()) == ("rejected", ["slow"])


@requirement("engine:two-processes")
async def test_an_answer_recorded_while_the_owner_goes_to_sleep_is_picked_up(world: World) -> None:
    gate = Gate()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("read", "before"):
            gate.may_pass.set()
            while (await world.stored(running)).status == "running":
                await anyio.lowlevel.checkpoint()

    async with world.process(gate) as owner, world.process(on=lambda store: WatchedStore(store, watch)) as other:
        running = await start(owner, SLOW, ASK, MAIL)
        await gate.is_reached.wait()
        [asked] = running.open_suspensions
        await other.answer(running, asked.question.suspension_id, YES, PERSON)
        world.clock.advance(LEASE_S)
        await owner.tick()
        done = await owner.wait(running, 60)
    assert (done.status, world.ledger.tools_run()) == ("completed", ["slow", "mail"])


@requirement("engine:two-processes")
async def test_an_owner_does_not_give_up_what_it_took_again_since_it_asked_who_owns_it(world: World) -> None:
    first, second = Gate(), Gate()
    slow = recording_tool(world.ledger, "slow", before=first.hold)
    late = recording_tool(world.ledger, "late", before=second.hold)
    is_to_hold, has_taken_again = False, anyio.Event()

    async def watch(moment: StoreCall) -> None:
        nonlocal is_to_hold
        if (moment.call, moment.when, is_to_hold) != ("headers", "after", True):
            return
        is_to_hold = False
        while (await world.stored(running)).open_suspensions:
            await anyio.lowlevel.checkpoint()
        first.may_pass.set()
        asked = await owner.wait(running, 60)
        assert asked.status == "suspended"
        await answer(owner, asked)
        await second.is_reached.wait()
        has_taken_again.set()

    store = WatchedStore(world.back_end.connect(), watch)
    again = step("again", "displayConfirmation", "slow", "ask", arguments={"action": "go on again?"})
    async with engine_on(store, Registry([slow, late, DISPLAY_CONFIRMATION]), CallerModel()) as owner:
        async with world.process() as other:
            running = await start(owner, SLOW, ASK, again, step("late", "late", "again"))
            await first.is_reached.wait()
            is_to_hold = True
            await answer(other, running)
            # A database may tell of the answer only later.
            while not has_taken_again.is_set():
                await owner.tick()
                await anyio.lowlevel.checkpoint()
            assert await world.fence(running) == 2
        second.may_pass.set()
        done = await owner.wait(running, 60)
    assert (done.status, world.ledger.tools_run()) == ("completed", ["slow", "late"])


# --- takeovers ---


@requirement("engine:fenced", "store:takeover")
async def test_an_effect_of_a_silent_owner_is_asked_about_and_its_late_result_settles_nothing(world: World) -> None:
    gate = Gate()
    async with world.process(gate, on=SilentStore) as silent, world.process() as other:
        running = await start(silent, SLOW)
        await gate.is_reached.wait()
        await world.outlast_silence(other, running)
        asked = await other.wait(running, 60)
        assert [found.question.kind for found in asked.open_suspensions] == ["reconcile"]
        gate.may_pass.set()
        while not world.ledger.tools_run():
            await anyio.lowlevel.checkpoint()
        late = await silent.wait(running, 60)
        assert late.status == "suspended" and "ToolReturned" not in await world.kinds(running)
        truth = world.ledger.reconcile_answer(f"{running.execution_id}:slow:1")
        done = await other.wait(await answer(other, asked, Decision(content=truth)), 60)
    assert (done.status, world.ledger.tools_run()) == ("completed", ["slow"])
    assert (await world.stored(running)) == done


@requirement("engine:fenced")
async def test_a_read_of_a_silent_owner_is_repeated_and_recorded_once(world: World) -> None:
    gate = Gate()
    async with world.process(gate, effect="read", on=SilentStore) as silent, world.process(effect="read") as other:
        running = await start(silent, SLOW)
        await gate.is_reached.wait()
        await world.outlast_silence(other, running)
        done = await other.wait(running, 60)
        gate.may_pass.set()
        while len(world.ledger.tools_run()) < 2:
            await anyio.lowlevel.checkpoint()
        late = await silent.wait(running, 60)
    assert done.status == late.status == "completed"
    assert (await world.kinds(running)).count("ToolReturned") == 1


@requirement("engine:fenced")
async def test_results_that_arrive_while_the_loss_of_the_lease_is_noticed_are_not_recorded(world: World) -> None:
    first, second = Gate(), Gate()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "before") and first.may_pass.is_set():
            second.may_pass.set()
            while "late" not in world.ledger.tools_run():
                await anyio.lowlevel.checkpoint()

    late = recording_tool(world.ledger, "late", effect="read", before=second.hold)
    slow = recording_tool(world.ledger, "slow", effect="read", before=first.hold)
    never = Gate()
    held = [recording_tool(world.ledger, name, effect="read", before=never.hold) for name in ("late", "slow")]
    store = WatchedStore(world.back_end.connect(), watch)
    async with (
        engine_on(SilentStore(store), Registry([late, slow]), CallerModel()) as silent,
        engine_on(world.back_end.connect(), Registry(held), CallerModel()) as other,
    ):
        running = await start(silent, step("late", "late"), SLOW)
        await first.is_reached.wait()
        await second.is_reached.wait()
        await world.outlast_silence(other, running)
        await never.is_reached.wait()
        version = (await world.stored(running)).version
        seen = await silent.find(running.execution_id)
        first.may_pass.set()
        await silent.wait_for_change(seen)
        assert world.ledger.tools_run() == ["slow", "late"]
        assert (await world.stored(running)).version == version
        never.may_pass.set()
        done = await other.wait(running, 60)
    assert done.status == "completed"


@requirement("store:takeover")
async def test_of_many_processes_one_takes_over(world: World) -> None:
    gate = Gate()
    async with world.process(gate, on=SilentStore) as silent:
        running = await start(silent, SLOW)
        await gate.is_reached.wait()
        world.clock.advance(LEASE_S)
        async with world.process() as one, world.process() as two, world.process() as three:
            while await world.fence(running) == 1:
                async with anyio.create_task_group() as tasks:
                    for engine in (one, two, three):
                        tasks.start_soon(engine.tick)
                        tasks.start_soon(engine.tick)
                world.clock.advance(UNLIMITED_S)
                await anyio.lowlevel.checkpoint()
            asked = await one.wait(running, 60)
            assert len(asked.open_suspensions) == 1
        assert (await world.kinds(running)).count("ToolOutcomeUnknown") == 1


# --- shutdown ---


@requirement("engine:shutdown")
async def test_an_effect_cut_off_by_shutdown_is_asked_about_by_the_next_process(world: World) -> None:
    gate = Gate()
    async with world.process(gate) as engine:
        running = await start(engine, SLOW)
        await gate.is_reached.wait()
    async with world.process() as engine:
        await engine.tick()
        asked = await engine.wait(running, 60)
        [found] = asked.open_suspensions
        assert (found.question.kind, world.ledger.tools_run()) == ("reconcile", [])
        truth = world.ledger.reconcile_answer(f"{running.execution_id}:slow:1")
        done = await engine.wait(await answer(engine, asked, Decision(content=truth)), 60)
    assert (done.status, world.ledger.tools_run()) == ("completed", ["slow"])


@requirement("engine:shutdown")
async def test_a_reconciliation_that_is_rejected_gives_the_step_up(world: World) -> None:
    gate = Gate()
    async with world.process(gate) as engine:
        running = await start(engine, SLOW, step("after", "mail", "slow"))
        await gate.is_reached.wait()
    async with world.process() as engine:
        await engine.tick()
        asked = await engine.wait(running, 60)
        done = await engine.wait(await answer(engine, asked, Decision(approved=False)), 60)
    assert (done.status, done.error_code, world.ledger.tools_run()) == ("failed", "outcome_unknown", [])
    assert done.steps["after"].status == "skipped"


@requirement("engine:shutdown")
async def test_a_read_cut_off_by_shutdown_is_repeated_by_the_next_process(world: World) -> None:
    gate = Gate()
    async with world.process(gate, effect="read") as engine:
        running = await start(engine, SLOW, MAIL, ASK)
        await gate.is_reached.wait()
    async with world.process(effect="read") as engine:
        await engine.tick()
        asked = await engine.wait(running, 60)
        done = await engine.wait(await answer(engine, asked), 60)
    assert (done.status, world.ledger.tools_run()) == ("completed", ["slow", "mail"])


@requirement("engine:shutdown")
async def test_a_call_that_ends_within_the_grace_of_shutdown_is_recorded(world: World) -> None:
    gate = Gate()
    slow = recording_tool(world.ledger, "slow", before=gate.hold)
    async with anyio.create_task_group() as tasks:

        async def pass_when_closing() -> None:
            await gate.is_reached.wait()
            await anyio.lowlevel.checkpoint()
            gate.may_pass.set()

        async with Engine(
            world.back_end.connect(), Registry([slow]), CallerModel(), OperatorPolicy(), grace_s=3_600.0
        ) as engine:
            running = await start(engine, SLOW, step("after", "slow", "slow"))
            tasks.start_soon(pass_when_closing)
        recorded = await world.kinds(running)
        assert recorded.count("ToolReturned") == 1 and world.ledger.tools_run() == ["slow"]
        header = await world.back_end.connect().header(running.execution_id)
        assert header is not None and header.owner is None
