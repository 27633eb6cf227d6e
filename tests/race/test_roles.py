"""Processes that share a store and do different things: fronts, workers, and workers without a tool."""

from collections.abc import Callable
from typing import Any

import anyio.lowlevel
import pytest

from planwarden.agent.common.errors import UndecidableHere
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import Engine
from tests.harness.person import NO, PERSON, YES
from tests.harness.team import ALONE, ASK, MAIL, Gate, Team, start, step, until_status
from tests.requirements import requirement
from tests.support.fakes import WatchedStore

pytestmark = pytest.mark.anyio


class KnownPeers:
    """Says what a test wants of the other processes."""

    def __init__(self) -> None:
        self.generation = 0
        self.is_outdated = False
        self.digests: dict[str, str] = {}

    def change(self, *, is_outdated: bool = False, **digests: str) -> None:
        self.generation += 1
        self.is_outdated = is_outdated
        self.digests = digests

    def is_current(self, definition: ToolDefinition) -> bool:
        return self.digests.get(definition.name, definition.digest) == definition.digest


Member = Callable[..., Engine]


@pytest.fixture
def member(team: Team, monkeypatch: pytest.MonkeyPatch) -> Member:
    """Make an engine with the tools of these names; a worker unless it is a `front`."""
    # What one process leaves to others waits for their next turns, and those of a test come sooner.
    monkeypatch.setattr("planwarden.agent.runtime.scheduler.TICK_S", 0.02)

    def make(*tools: str, gate: Gate | None = None, front: bool = False, **options: Any) -> Engine:
        options.setdefault("peers", KnownPeers())
        return team.process(gate, tools=tools, adopts=not front, follows=not front, **options)

    return make


@requirement("scale:roles")
async def test_a_front_owns_and_runs_nothing_and_a_worker_runs_what_it_recorded(team: Team, member: Member) -> None:
    async with member("mail", front=True) as front:
        running = await start(front, ASK, MAIL)
        header = await team.header(running)
        assert (header.status, header.owner) == ("running", None)
        assert await front.store.orphans(10) == (running.execution_id,)
        await front.tick()
        assert (await front.find(running.execution_id)).version == running.version
        async with member("mail"):
            asked = await until_status(front, running, "suspended")
            [question] = asked.open_suspensions
            _, is_accepted = await front.answer(asked, question.question.suspension_id, YES, PERSON)
            assert is_accepted
            done = await until_status(front, asked, "completed")
        assert done.is_finished
    assert team.ledger.tools_run() == ["mail"]


@requirement("scale:roles")
async def test_what_a_front_recorded_costs_a_worker_one_claim_and_one_read_before_it_goes_on(member: Member) -> None:
    calls: list[str] = []

    def watch(store: Store) -> Store:
        watched = WatchedStore(store)
        watched.calls = calls
        return watched

    async with member("mail", front=True) as front:
        running = await start(front, ALONE)
        async with member("mail", on=watch):
            await until_status(front, running, "completed")
    assert calls[calls.index("claim_many") :][:3] == ["claim_many", "log", "append"]


@requirement("scale:roles")
async def test_a_front_cancels_what_a_worker_runs(team: Team, member: Member) -> None:
    async with member("mail", front=True) as front, member("mail"):
        asked = await until_status(front, await start(front, ASK, MAIL), "suspended")
        await front.cancel(asked, "no longer wanted")
        await until_status(front, asked, "cancelled")
    assert team.ledger.tools_run() == []


@requirement("scale:tools")
async def test_work_goes_to_the_process_that_has_the_tools_and_waits_until_there_is_one(
    team: Team, member: Member
) -> None:
    async with member("mail", front=True) as front, member() as poor:
        running = await start(front, ALONE)
        for _ in range(3):
            await poor.tick()
        waiting = await front.find(running.execution_id)
        assert (waiting.status, waiting.version) == ("running", running.version)
        async with member("mail"):
            await until_status(front, running, "completed")
    assert team.ledger.tools_run() == ["mail"]


@requirement("scale:tools")
async def test_an_answer_given_where_the_tool_is_missing_is_recorded_and_carried_out_elsewhere(
    team: Team, member: Member
) -> None:
    async with member("mail") as rich:
        asked = await until_status(rich, await start(rich, ASK, MAIL), "suspended")
    async with member() as poor:
        found = await poor.find(asked.execution_id)
        [question] = found.open_suspensions
        answered, is_accepted = await poor.answer(found, question.question.suspension_id, YES, PERSON)
        assert (answered.status, is_accepted) == ("running", True)
        assert team.ledger.tools_run() == []
        async with member("mail"):
            await until_status(poor, asked, "completed")
    assert team.ledger.tools_run() == ["mail"]


@requirement("scale:roles")
async def test_workers_share_what_waits_and_take_no_more_than_they_may(team: Team, member: Member) -> None:
    async with member("mail", front=True) as front:
        started = [await start(front, ALONE, thread_id=f"t{number}") for number in range(40)]
        async with member("mail", concurrency=2), member("mail", concurrency=3):
            for execution in started:
                await until_status(front, execution, "completed")
    assert team.ledger.tools_run() == ["mail"] * 40


@requirement("scale:policy")
async def test_a_process_with_an_older_policy_hands_over_what_it_runs_when_its_calls_have_ended(
    team: Team, member: Member
) -> None:
    old_peers, gate = KnownPeers(), Gate()
    async with member("mail", front=True) as front, member("mail", gate=gate, peers=old_peers):
        running = await start(front, step("one", "mail"), step("two", "mail", "one"))
        await gate.is_reached.wait()
        old_peers.change(is_outdated=True)
        gate.may_pass.set()
        while (await team.header(running)).owner is not None:
            await anyio.lowlevel.checkpoint()
        assert (await front.find(running.execution_id)).status == "running"
        assert team.ledger.tools_run() == ["mail"]
        async with member("mail"):
            await until_status(front, running, "completed")
    assert team.ledger.tools_run() == ["mail", "mail"]


@requirement("scale:policy")
async def test_a_process_with_an_older_policy_lets_people_reject_but_not_approve(member: Member) -> None:
    peers = KnownPeers()
    async with member("mail", peers=peers) as engine:
        asked = await until_status(engine, await start(engine, ASK, MAIL), "suspended")
        [found] = asked.open_suspensions
        peers.change(is_outdated=True)
        with pytest.raises(UndecidableHere, match="restart this one"):
            await engine.answer(asked, found.question.suspension_id, YES, PERSON)
        assert (await engine.find(asked.execution_id)).version == asked.version
        rejected, is_accepted = await engine.answer(asked, found.question.suspension_id, NO, PERSON)
        assert (rejected.status, is_accepted) == ("running", True)


@requirement("scale:tools")
async def test_work_goes_to_the_process_whose_tool_is_the_newest(member: Member) -> None:
    peers = KnownPeers()
    peers.change(mail="digest of a newer version")
    async with member("mail", front=True) as front, member("mail", peers=peers) as old:
        running = await start(front, ALONE)
        for _ in range(3):
            await old.tick()
        assert (await front.find(running.execution_id)).version == running.version
        peers.change()
        await until_status(front, running, "completed")
