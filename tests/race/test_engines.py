"""Engines on one store, as processes on one file: answers, cancellations, takeovers, fronts, workers and missing tools.

Nothing here waits for time: calls are held at gates, clocks are set, and the clockwork is turned by hand.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import UndecidableHere
from planwarden.agent.core.tool import Effect
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.runtime.engine import Engine
from tests.harness import team as harness
from tests.requirements import requirement
from tests.storage.suite import LEASE_S, BackEnd
from tests.support.fakes import StoreCall, WatchedStore


@pytest.fixture
def team(back_end: BackEnd, tmp_path: Path) -> harness.Team:
    return harness.Team(back_end, tmp_path)


Elsewhere = Literal["answered", "cancelled", "expired"]
ENDS: dict[Elsewhere, tuple[str, list[str]]] = {
    "answered": ("completed", ["mail", "slow"]),
    "cancelled": ("cancelled", []),
    "expired": ("rejected", ["slow"]),
}


@requirement("engine:two-processes")
@pytest.mark.parametrize("what", ENDS)
async def test_what_another_process_records_reaches_the_owner_while_a_call_still_runs(
    team: harness.Team, what: Elsewhere
) -> None:
    gate = harness.Gate()
    async with team.process(gate) as owner, team.process() as other:
        running = await harness.start(owner, harness.SLOW, harness.ASK_SOON, harness.MAIL)
        await gate.is_reached.wait()
        match what:
            case "answered":
                assert (await harness.answer(other, running)).status == "running"
            case "cancelled":
                await other.cancel(await other.find(running.execution_id), "enough")
            case "expired":
                # Less than after which a process whose connection is slow would be taken for dead.
                team.clock.advance(1)
                await other.tick()
        await owner.tick()
        if what != "cancelled":
            over = "completed" if what == "answered" else "skipped"
            while (await owner.find(running.execution_id)).steps["mail"].status != over:
                await anyio.lowlevel.checkpoint()
            gate.may_pass.set()
        done = await owner.wait(running, 60)
    assert (done.status, team.ledger.tools_run()) == ENDS[what]
    if what == "cancelled":
        assert (done.cancel_reason, done.steps["slow"].calls[0].status) == ("enough", "outcome_unknown")
        assert done.open_suspensions == ()


@requirement("engine:two-processes")
async def test_what_another_process_acknowledged_is_shown_during_ones_own_commit(team: harness.Team) -> None:
    late = harness.Gate()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "before"):
            await late.hold()

    async with team.process() as first, team.process(on=lambda store: WatchedStore(store, watch)) as second:
        asked = await first.wait(await harness.start(first, harness.ASK, harness.MAIL), 60)
        known = await second.find(asked.execution_id)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(harness.answer, second, known)
            await late.is_reached.wait()
            done = await first.wait(await harness.answer(first, asked), 60)
            shown = await second.find(asked.execution_id)
            assert shown == await second.wait(shown, 60) == done
            late.may_pass.set()
    assert team.ledger.tools_run() == ["mail"]


@requirement("engine:two-processes")
async def test_an_answer_recorded_while_the_owner_goes_to_sleep_is_picked_up(team: harness.Team) -> None:
    gate = harness.Gate()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("read", "before"):
            gate.may_pass.set()
            while (await team.stored(running)).status == "running":
                await anyio.lowlevel.checkpoint()

    async with team.process(gate) as owner, team.process(on=lambda store: WatchedStore(store, watch)) as other:
        running = await harness.start(owner, harness.SLOW, harness.ASK, harness.MAIL)
        await gate.is_reached.wait()
        [asked] = running.open_suspensions
        await other.answer(running, asked.question.suspension_id, harness.YES, harness.PERSON)
        team.clock.advance(LEASE_S)
        await owner.tick()
        done = await owner.wait(running, 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["slow", "mail"])


CUT_OFF: list[tuple[Effect, Decision | None, tuple[str, str | None, str, list[str]]]] = [
    ("read", None, ("completed", None, "completed", ["slow", "slow"])),
    ("effect", harness.DID_NOT_HAPPEN, ("completed", None, "completed", ["slow", "slow"])),
    ("effect", harness.NO, ("failed", "outcome_unknown", "skipped", [])),
]
"""What a call is, what a person says that becomes of it, and the end."""


@requirement("engine:shutdown")
@pytest.mark.parametrize(("effect", "says", "end"), CUT_OFF)
async def test_a_call_cut_off_by_shutdown_is_repeated_by_the_next_process_or_asked_about(
    team: harness.Team, effect: Effect, says: Decision | None, end: tuple[str, str | None, str, list[str]]
) -> None:
    gate, after = harness.Gate(), harness.step("after", "slow", "slow")
    async with team.process(gate, effect=effect) as engine:
        running = await harness.start(engine, harness.SLOW, after)
        await gate.is_reached.wait()
    async with team.process(effect=effect) as engine:
        await engine.tick()
        if says is not None:
            assert (await harness.find_question(engine, running)).kind == "reconcile" and team.ledger.tools_run() == []
            await harness.answer(engine, running, says)
        done = await engine.wait(await engine.find(running.execution_id), 60)
    assert (done.status, done.error_code, done.steps["after"].status, team.ledger.tools_run()) == end


class KnownPeers:
    def __init__(self) -> None:
        self.generation = 0
        self.is_outdated = False
        self.are_tools_known = True
        self.digests: dict[str, str] = {}

    def change(self, *, is_outdated: bool = False, **digests: str) -> None:
        self.generation += 1
        self.is_outdated = is_outdated
        self.digests = digests

    async def look_for(self, context: str | None) -> None:
        pass

    def are_current(self, names: Iterable[str], tools: Toolbox, context: str | None) -> bool:
        return all(self.digests.get(d.name, d.digest) == d.digest for d in filter(None, map(tools.get, names)))


Member = Callable[..., Engine]


@pytest.fixture
def member(team: harness.Team, monkeypatch: pytest.MonkeyPatch) -> Member:
    """Make an engine with the tools of these names; a worker unless it is a `front`."""
    # What one process leaves to others waits for their next turns, and those of a test come sooner.
    monkeypatch.setattr("planwarden.agent.runtime.scheduler.TICK_S", 0.02)

    def make(*tools: str, gate: harness.Gate | None = None, front: bool = False, **options: Any) -> Engine:
        options.setdefault("peers", KnownPeers())
        return team.process(gate, tools=tools, adopts=not front, executes=not front, **options)

    return make


@requirement("scale:roles")
async def test_a_front_owns_and_runs_nothing_and_a_worker_runs_its_records(team: harness.Team, member: Member) -> None:
    async with member("mail", front=True) as front:
        running = await harness.start(front, harness.ASK, harness.MAIL)
        header = await team.header(running)
        assert (header.status, header.owner) == ("running", None)
        assert await front.store.orphans(10) == (running.execution_id,)
        await front.tick()
        assert (await front.find(running.execution_id)).version == running.version
        async with member("mail"):
            asked = await harness.until_status(front, running, "suspended")
            [question] = asked.open_suspensions
            _, is_accepted = await front.answer(asked, question.question.suspension_id, harness.YES, harness.PERSON)
            assert is_accepted
            done = await harness.until_status(front, asked, "completed")
            asked = await harness.until_status(
                front, await harness.start(front, harness.ASK, harness.MAIL, thread_id="t2"), "suspended"
            )
            await front.cancel(asked, "no longer wanted")
            await harness.until_status(front, asked, "cancelled")
        assert done.is_finished
    assert team.ledger.tools_run() == ["mail"]


@requirement("scale:tools")
@pytest.mark.parametrize("tools", [(), ("mail",)], ids=["without the tool", "with an older one"])
async def test_work_goes_to_the_process_that_has_the_newest_tools_and_waits_until_there_is_one(
    team: harness.Team, member: Member, tools: tuple[str, ...]
) -> None:
    peers = KnownPeers()
    peers.change(mail="digest of a newer version")
    async with member("mail", front=True) as front, member(*tools, peers=peers) as poor:
        running = await harness.start(front, harness.ALONE)
        for _ in range(3):
            await poor.tick()
        waiting = await front.find(running.execution_id)
        assert (waiting.status, waiting.version) == ("running", running.version)
        async with member("mail"):
            await harness.until_status(front, running, "completed")
    assert team.ledger.tools_run() == ["mail"]


@requirement("scale:policy")
async def test_a_process_with_an_older_policy_hands_over_what_it_runs_when_its_calls_have_ended(
    team: harness.Team, member: Member
) -> None:
    old_peers, gate = KnownPeers(), harness.Gate()
    async with member("mail", front=True) as front, member("mail", gate=gate, peers=old_peers):
        running = await harness.start(front, harness.step("one", "mail"), harness.step("two", "mail", "one"))
        await gate.is_reached.wait()
        old_peers.change(is_outdated=True)
        gate.may_pass.set()
        while (await team.header(running)).owner is not None:
            await anyio.lowlevel.checkpoint()
        assert (await front.find(running.execution_id)).status == "running"
        assert team.ledger.tools_run() == ["mail"]
        async with member("mail"):
            await harness.until_status(front, running, "completed")
    assert team.ledger.tools_run() == ["mail", "mail"]


@requirement("scale:policy")
async def test_a_process_with_an_older_policy_lets_people_reject_but_not_approve(member: Member) -> None:
    peers = KnownPeers()
    async with member("mail", peers=peers) as engine:
        asked = await harness.until_status(engine, await harness.start(engine, harness.ASK, harness.MAIL), "suspended")
        [found] = asked.open_suspensions
        peers.change(is_outdated=True)
        with pytest.raises(UndecidableHere, match="restart this one"):
            await engine.answer(asked, found.question.suspension_id, harness.YES, harness.PERSON)
        assert (await engine.find(asked.execution_id)).version == asked.version
        rejected, is_accepted = await engine.answer(asked, found.question.suspension_id, harness.NO, harness.PERSON)
        assert (rejected.status, is_accepted) == ("running", True)
