"""Two engines on one store, as two processes on one file: answers, cancellations, takeovers and late results.

Nothing here waits for time: calls are held at gates, clocks are set, and the clockwork is turned by hand.
"""

import anyio
import anyio.lowlevel
import pytest

from planwarden.agent.approval.answers import Decision
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.unresponsive_owners import UNLIMITED_S
from tests.harness.fault import SilentStore
from tests.harness.person import NO, PERSON, YES
from tests.harness.team import ASK, ASK_SOON, MAIL, SLOW, Gate, Team, answer, start, step
from tests.requirements import requirement
from tests.storage.suite import LEASE_S
from tests.support.fakes import StoreCall, WatchedStore

pytestmark = pytest.mark.anyio


async def until_step(engine: Engine, execution: ExecutionState, step_id: str, status: str) -> None:
    """Return when the step has the status in this engine's eyes."""
    while (await engine.find(execution.execution_id)).steps[step_id].status != status:
        await anyio.lowlevel.checkpoint()


@requirement("engine:two-processes")
async def test_an_answer_recorded_elsewhere_reaches_the_owner_while_another_branch_still_runs(team: Team) -> None:
    gate = Gate()
    async with team.process(gate) as owner, team.process() as other:
        running = await start(owner, SLOW, ASK, MAIL)
        await gate.is_reached.wait()
        answered = await answer(other, running)
        assert answered.status == "running"
        await owner.tick()
        await until_step(owner, running, "mail", "completed")
        assert team.ledger.tools_run() == ["mail"]
        gate.may_pass.set()
        done = await owner.wait(running, 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["mail", "slow"])


@requirement("engine:two-processes")
async def test_an_answer_for_an_execution_that_another_process_owns_is_recorded_before_anything_else_is_asked(
    team: Team,
) -> None:
    gate = Gate()
    watched: list[WatchedStore] = []

    async def watch(_: StoreCall) -> None:
        """Only the names of the calls count."""

    def on(store: Store) -> Store:
        watched.append(WatchedStore(store, watch))
        return watched[0]

    async with team.process(gate) as owner, team.process(on=on) as other:
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
    assert (done.status, sorted(team.ledger.tools_run())) == ("completed", ["mail", "slow"])


@requirement("engine:two-processes")
async def test_an_answer_for_an_execution_whose_owner_has_just_gone_is_carried_out_here(team: Team) -> None:
    gate, store = Gate(), team.back_end.connect()
    async with team.process(gate, effect="read") as gone:
        running = await start(gone, SLOW, ASK, MAIL)
        await gate.is_reached.wait()
    leases = [await store.claim(running.execution_id, "somebody")]

    async def give_up(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "before") and leases:
            lease = leases.pop()
            assert lease is not None
            await store.release(lease)

    async with team.process(effect="read", adopts=False, on=lambda inner: WatchedStore(inner, give_up)) as command:
        # It looks for what it knows and nobody owns only now, until a clock that nobody moves goes on.
        await command.tick()
        done = await command.wait(await answer(command, running), 60)
    assert (done.status, sorted(team.ledger.tools_run())) == ("completed", ["mail", "slow"])


@requirement("engine:two-processes")
async def test_an_answer_to_a_suspended_execution_is_continued_by_whoever_took_it(team: Team) -> None:
    async with team.process() as first, team.process() as second:
        asked = await first.wait(await start(first, ASK, MAIL), 60)
        assert asked.status == "suspended"
        done = await second.wait(await answer(second, asked), 60)
        await first.tick()
        assert (await first.find(asked.execution_id)) == done
    assert (done.status, team.ledger.tools_run()) == ("completed", ["mail"])


@requirement("engine:two-processes")
async def test_a_watcher_in_another_process_is_woken_by_the_end(team: Team) -> None:
    gate = Gate()
    async with team.process(gate) as owner, team.process() as other:
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
async def test_a_commit_between_looking_and_waiting_is_not_missed(team: Team) -> None:
    gate = Gate()
    finish = anyio.Event()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("log", "after") and not finish.is_set():
            finish.set()
            gate.may_pass.set()
            while (await team.stored(running)).status == "running":
                await anyio.lowlevel.checkpoint()
            await other.tick()

    async with team.process(gate) as owner, team.process(on=lambda store: WatchedStore(store, watch)) as other:
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
    team: Team,
) -> None:
    late = Gate()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "before"):
            await late.hold()

    async with team.process() as first, team.process(on=lambda store: WatchedStore(store, watch)) as second:
        asked = await first.wait(await start(first, ASK, MAIL), 60)
        known = await second.find(asked.execution_id)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, second, known)
            await late.is_reached.wait()
            done = await first.wait(await answer(first, asked), 60)
            shown = await second.find(asked.execution_id)
            assert shown == await second.wait(shown, 60) == done
            late.may_pass.set()
    assert team.ledger.tools_run() == ["mail"]


@requirement("engine:two-processes")
async def test_a_cancellation_from_another_process_stops_the_owners_call(team: Team) -> None:
    gate = Gate()
    async with team.process(gate) as owner, team.process() as other:
        running = await start(owner, SLOW, ASK, MAIL)
        await gate.is_reached.wait()
        known = await other.find(running.execution_id)
        await other.cancel(known, "enough")
        await owner.tick()
        done = await owner.wait(running, 60)
    assert (done.status, done.cancel_reason, team.ledger.tools_run()) == ("cancelled", "enough", [])
    assert done.steps["slow"].calls[0].status == "outcome_unknown"
    assert done.open_suspensions == ()


@requirement("engine:two-processes")
async def test_a_deadline_that_another_process_saw_pass_reaches_the_owner(team: Team) -> None:
    gate = Gate()
    async with team.process(gate) as owner, team.process() as other:
        running = await start(owner, SLOW, ASK_SOON, MAIL)
        await gate.is_reached.wait()
        # Less than after which a process whose connection is slow would be taken for dead.
        team.clock.advance(1)
        await other.tick()
        await owner.tick()
        await until_step(owner, running, "mail", "skipped")
        gate.may_pass.set()
        done = await owner.wait(running, 60)
    assert (done.status, team.ledger.tools_run()) == ("rejected", ["slow"])


@requirement("engine:two-processes")
async def test_an_answer_recorded_while_the_owner_goes_to_sleep_is_picked_up(team: Team) -> None:
    gate = Gate()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("read", "before"):
            gate.may_pass.set()
            while (await team.stored(running)).status == "running":
                await anyio.lowlevel.checkpoint()

    async with team.process(gate) as owner, team.process(on=lambda store: WatchedStore(store, watch)) as other:
        running = await start(owner, SLOW, ASK, MAIL)
        await gate.is_reached.wait()
        [asked] = running.open_suspensions
        await other.answer(running, asked.question.suspension_id, YES, PERSON)
        team.clock.advance(LEASE_S)
        await owner.tick()
        done = await owner.wait(running, 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["slow", "mail"])


@requirement("engine:two-processes")
async def test_an_owner_does_not_give_up_what_it_took_again_since_it_asked_who_owns_it(team: Team) -> None:
    first, second = Gate(), Gate()
    late = team.tool("late", before=second.hold)
    is_to_hold, has_taken_again = False, anyio.Event()

    async def watch(moment: StoreCall) -> None:
        nonlocal is_to_hold
        if (moment.call, moment.when, is_to_hold) != ("headers", "after", True):
            return
        is_to_hold = False
        while (await team.stored(running)).open_suspensions:
            await anyio.lowlevel.checkpoint()
        first.may_pass.set()
        asked = await owner.wait(running, 60)
        assert asked.status == "suspended"
        await answer(owner, asked)
        await second.is_reached.wait()
        has_taken_again.set()

    again = step("again", "displayConfirmation", "slow", "ask", arguments={"action": "go on again?"})
    async with team.process(first, tools=("slow", late), on=lambda store: WatchedStore(store, watch)) as owner:
        async with team.process() as other:
            running = await start(owner, SLOW, ASK, again, step("late", "late", "again"))
            await first.is_reached.wait()
            is_to_hold = True
            await answer(other, running)
            # A database may tell of the answer only later.
            while not has_taken_again.is_set():
                await owner.tick()
                await anyio.lowlevel.checkpoint()
            assert (await team.header(running)).fence == 2
        second.may_pass.set()
        done = await owner.wait(running, 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["slow", "late"])


@requirement("engine:fenced", "store:takeover")
async def test_an_effect_of_a_silent_owner_is_asked_about_and_its_late_result_settles_nothing(team: Team) -> None:
    gate = Gate()
    async with team.process(gate, on=SilentStore) as silent, team.process() as other:
        running = await start(silent, SLOW)
        await gate.is_reached.wait()
        await team.outlast_silence(other, running, UNLIMITED_S)
        asked = await other.wait(running, 60)
        assert [found.question.kind for found in asked.open_suspensions] == ["reconcile"]
        gate.may_pass.set()
        while not team.ledger.tools_run():
            await anyio.lowlevel.checkpoint()
        late = await silent.wait(running, 60)
        assert late.status == "suspended" and "ToolReturned" not in await team.kinds(running)
        truth = team.ledger.reconcile_answer(f"{running.execution_id}:slow:1")
        done = await other.wait(await answer(other, asked, Decision(content=truth)), 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["slow"])
    assert (await team.stored(running)) == done


@requirement("engine:fenced")
async def test_a_read_of_a_silent_owner_is_repeated_and_recorded_once(team: Team) -> None:
    gate = Gate()
    async with team.process(gate, effect="read", on=SilentStore) as silent, team.process(effect="read") as other:
        running = await start(silent, SLOW)
        await gate.is_reached.wait()
        await team.outlast_silence(other, running, UNLIMITED_S)
        done = await other.wait(running, 60)
        gate.may_pass.set()
        while len(team.ledger.tools_run()) < 2:
            await anyio.lowlevel.checkpoint()
        late = await silent.wait(running, 60)
    assert done.status == late.status == "completed"
    assert (await team.kinds(running)).count("ToolReturned") == 1


@requirement("engine:fenced")
async def test_results_that_arrive_while_the_loss_of_the_lease_is_noticed_are_not_recorded(team: Team) -> None:
    first, second = Gate(), Gate()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "before") and first.may_pass.is_set():
            second.may_pass.set()
            while "late" not in team.ledger.tools_run():
                await anyio.lowlevel.checkpoint()

    late, never = team.tool("late", effect="read", before=second.hold), Gate()
    held = [team.tool(name, effect="read", before=never.hold) for name in ("late", "slow")]
    async with (
        team.process(
            first, tools=("slow", late), effect="read", on=lambda store: SilentStore(WatchedStore(store, watch))
        ) as silent,
        team.process(tools=held) as other,
    ):
        running = await start(silent, step("late", "late"), SLOW)
        await first.is_reached.wait()
        await second.is_reached.wait()
        await team.outlast_silence(other, running, UNLIMITED_S)
        await never.is_reached.wait()
        version = (await team.stored(running)).version
        seen = await silent.find(running.execution_id)
        first.may_pass.set()
        await silent.wait_for_change(seen)
        assert team.ledger.tools_run() == ["slow", "late"]
        assert (await team.stored(running)).version == version
        never.may_pass.set()
        done = await other.wait(running, 60)
    assert done.status == "completed"


@requirement("store:takeover")
async def test_of_many_processes_one_takes_over(team: Team) -> None:
    gate = Gate()
    async with team.process(gate, on=SilentStore) as silent:
        running = await start(silent, SLOW)
        await gate.is_reached.wait()
        team.clock.advance(LEASE_S)
        async with team.process() as one, team.process() as two, team.process() as three:
            while (await team.header(running)).fence == 1:
                async with anyio.create_task_group() as tasks:
                    for engine in (one, two, three):
                        tasks.start_soon(engine.tick)
                        tasks.start_soon(engine.tick)
                team.clock.advance(UNLIMITED_S)
                await anyio.lowlevel.checkpoint()
            asked = await one.wait(running, 60)
            assert len(asked.open_suspensions) == 1
        assert (await team.kinds(running)).count("ToolOutcomeUnknown") == 1


@requirement("engine:shutdown")
async def test_an_effect_cut_off_by_shutdown_is_asked_about_by_the_next_process(team: Team) -> None:
    gate = Gate()
    async with team.process(gate) as engine:
        running = await start(engine, SLOW)
        await gate.is_reached.wait()
    async with team.process() as engine:
        await engine.tick()
        asked = await engine.wait(running, 60)
        [found] = asked.open_suspensions
        assert (found.question.kind, team.ledger.tools_run()) == ("reconcile", [])
        truth = team.ledger.reconcile_answer(f"{running.execution_id}:slow:1")
        done = await engine.wait(await answer(engine, asked, Decision(content=truth)), 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["slow"])


@requirement("engine:shutdown")
async def test_a_reconciliation_that_is_rejected_gives_the_step_up(team: Team) -> None:
    gate = Gate()
    async with team.process(gate) as engine:
        running = await start(engine, SLOW, step("after", "mail", "slow"))
        await gate.is_reached.wait()
    async with team.process() as engine:
        await engine.tick()
        asked = await engine.wait(running, 60)
        done = await engine.wait(await answer(engine, asked, NO), 60)
    assert (done.status, done.error_code, team.ledger.tools_run()) == ("failed", "outcome_unknown", [])
    assert done.steps["after"].status == "skipped"


@requirement("engine:shutdown")
async def test_a_read_cut_off_by_shutdown_is_repeated_by_the_next_process(team: Team) -> None:
    gate = Gate()
    async with team.process(gate, effect="read") as engine:
        running = await start(engine, SLOW, MAIL, ASK)
        await gate.is_reached.wait()
    async with team.process(effect="read") as engine:
        await engine.tick()
        asked = await engine.wait(running, 60)
        done = await engine.wait(await answer(engine, asked), 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["slow", "mail"])


@requirement("engine:shutdown")
async def test_a_call_that_ends_within_the_grace_of_shutdown_is_recorded(team: Team) -> None:
    gate = Gate()
    async with anyio.create_task_group() as tasks:

        async def pass_when_closing() -> None:
            await gate.is_reached.wait()
            await anyio.lowlevel.checkpoint()
            gate.may_pass.set()

        async with team.process(gate, grace_s=3_600.0) as engine:
            running = await start(engine, SLOW, step("after", "slow", "slow"))
            tasks.start_soon(pass_when_closing)
        recorded = await team.kinds(running)
        assert recorded.count("ToolReturned") == 1 and team.ledger.tools_run() == ["slow"]
        assert (await team.header(running)).owner is None
