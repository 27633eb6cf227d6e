"""Processes that share a store and do different things: fronts, workers, and workers without a tool."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import UndecidableHere
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.runtime.engine import Engine
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION
from planwarden.tools.registry import Registry
from tests.crash.scenario import PERSON, PRINCIPAL
from tests.race.test_engines import ASK, MAIL, Gate, step
from tests.requirements import requirement
from tests.storage.suite import BACK_END_NAMES, BACK_ENDS, BackEnd
from tests.support.fakes import EffectLedger, StoreCall, WatchedStore, recording_tool

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


class Team:
    """One store, and engines with roles."""

    def __init__(self, back_end: BackEnd, folder: Path) -> None:
        self._back_end = back_end
        self.ledger = EffectLedger(folder / "effects")

    @asynccontextmanager
    async def member(
        self,
        *tools: str,
        front: bool = False,
        concurrency: int = 100,
        gate: Gate | None = None,
        peers: KnownPeers | None = None,
        calls: list[str] | None = None,
    ) -> AsyncGenerator[Engine]:
        """An engine with the tools of these names; a worker unless it is a `front`. `calls` gets those of its store."""
        known = [recording_tool(self.ledger, name, before=gate.hold if gate else None) for name in tools]
        store = WatchedStore(self._back_end.connect(), _pass)
        if calls is not None:
            store.calls = calls
        engine = Engine(
            store,
            Registry([*known, DISPLAY_CONFIRMATION]),
            CallerModel(),
            OperatorPolicy(),
            adopts=not front,
            follows=not front,
            concurrency=concurrency,
            peers=peers or KnownPeers(),
        )
        async with engine:
            yield engine


async def _pass(_: StoreCall) -> None:
    """Only the names of the calls count."""


@pytest.fixture(params=BACK_END_NAMES)
async def team(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Team]:
    # What one process leaves to others waits for their next turns, and those of a test come sooner.
    monkeypatch.setattr("planwarden.agent.runtime.scheduler.TICK_S", 0.02)
    back_end = BACK_ENDS[request.param](tmp_path / "home")
    try:
        with anyio.fail_after(60):
            yield Team(back_end, tmp_path)
    finally:
        await back_end.close()


async def start(engine: Engine, thread_id: str, *steps: dict[str, JsonValue]) -> ExecutionState:
    plan, _ = parse_plan({"todoList": list(steps)}, author="caller", tools=engine.tool_facts())
    return await engine.create(
        thread_id=thread_id, requester=Requester(PRINCIPAL), goal=None, plan=plan, options=ev.Options()
    )


async def until(engine: Engine, execution: ExecutionState, status: str) -> ExecutionState:
    """The state once some process has brought the execution there."""
    while (execution := await engine.find(execution.execution_id)).status != status:
        with anyio.move_on_after(0.2):
            await engine.wait_for_change(execution)
    return execution


@requirement("scale:roles")
async def test_a_front_owns_and_runs_nothing_and_a_worker_runs_what_it_recorded(team: Team) -> None:
    async with team.member("mail", front=True) as front:
        running = await start(front, "t", ASK, MAIL)
        header = await front.store.header(running.execution_id)
        assert header is not None
        assert (header.status, header.owner) == ("running", None)
        assert await front.store.orphans(10) == (running.execution_id,)
        await front.tick()
        assert (await front.find(running.execution_id)).version == running.version
        async with team.member("mail"):
            asked = await until(front, running, "suspended")
            [question] = asked.open_suspensions
            _, is_accepted = await front.answer(asked, question.question.suspension_id, Decision(approved=True), PERSON)
            assert is_accepted
            done = await until(front, asked, "completed")
        assert done.is_finished
    assert team.ledger.tools_run() == ["mail"]


@requirement("scale:roles")
async def test_what_a_front_recorded_costs_a_worker_one_claim_and_one_read_before_it_goes_on(team: Team) -> None:
    calls: list[str] = []
    async with team.member("mail", front=True) as front:
        running = await start(front, "t", step("mail", "mail"))
        async with team.member("mail", calls=calls):
            await until(front, running, "completed")
    assert calls[calls.index("claim_many") :][:3] == ["claim_many", "log", "append"]


@requirement("scale:roles")
async def test_a_front_cancels_what_a_worker_runs(team: Team) -> None:
    async with team.member("mail", front=True) as front, team.member("mail"):
        asked = await until(front, await start(front, "t", ASK, MAIL), "suspended")
        await front.cancel(asked, "no longer wanted")
        await until(front, asked, "cancelled")
    assert team.ledger.tools_run() == []


@requirement("scale:tools")
async def test_work_goes_to_the_process_that_has_the_tools_and_waits_until_there_is_one(team: Team) -> None:
    async with team.member("mail", front=True) as front, team.member() as poor:
        running = await start(front, "t", step("mail", "mail"))
        for _ in range(3):
            await poor.tick()
        waiting = await front.find(running.execution_id)
        assert (waiting.status, waiting.version) == ("running", running.version)
        async with team.member("mail"):
            await until(front, running, "completed")
    assert team.ledger.tools_run() == ["mail"]


@requirement("scale:tools")
async def test_an_answer_given_where_the_tool_is_missing_is_recorded_and_carried_out_elsewhere(team: Team) -> None:
    async with team.member("mail") as rich:
        asked = await until(rich, await start(rich, "t", ASK, MAIL), "suspended")
    async with team.member() as poor:
        found = await poor.find(asked.execution_id)
        [question] = found.open_suspensions
        answered, is_accepted = await poor.answer(
            found, question.question.suspension_id, Decision(approved=True), PERSON
        )
        assert (answered.status, is_accepted) == ("running", True)
        assert team.ledger.tools_run() == []
        async with team.member("mail"):
            await until(poor, asked, "completed")
    assert team.ledger.tools_run() == ["mail"]


@requirement("scale:roles")
async def test_workers_share_what_waits_and_take_no_more_than_they_may(team: Team) -> None:
    async with team.member("mail", front=True) as front:
        started = [await start(front, f"t{number}", step("mail", "mail")) for number in range(40)]
        async with team.member("mail", concurrency=2), team.member("mail", concurrency=3):
            for execution in started:
                await until(front, execution, "completed")
    assert team.ledger.tools_run() == ["mail"] * 40


@requirement("scale:policy")
async def test_a_process_with_an_older_policy_hands_over_what_it_runs_when_its_calls_have_ended(team: Team) -> None:
    old_peers, gate = KnownPeers(), Gate()
    async with team.member("mail", front=True) as front, team.member("mail", gate=gate, peers=old_peers):
        running = await start(front, "t", step("one", "mail"), step("two", "mail", "one"))
        await gate.is_reached.wait()
        old_peers.change(is_outdated=True)
        gate.may_pass.set()
        while (header := await front.store.header(running.execution_id)) is not None and header.owner is not None:
            await anyio.lowlevel.checkpoint()
        assert (await front.find(running.execution_id)).status == "running"
        assert team.ledger.tools_run() == ["mail"]
        async with team.member("mail"):
            await until(front, running, "completed")
    assert team.ledger.tools_run() == ["mail", "mail"]


@requirement("scale:policy")
async def test_a_process_with_an_older_policy_lets_people_reject_but_not_approve(team: Team) -> None:
    peers = KnownPeers()
    async with team.member("mail", peers=peers) as engine:
        asked = await until(engine, await start(engine, "t", ASK, MAIL), "suspended")
        [found] = asked.open_suspensions
        peers.change(is_outdated=True)
        with pytest.raises(UndecidableHere, match="restart this one"):
            await engine.answer(asked, found.question.suspension_id, Decision(approved=True), PERSON)
        assert (await engine.find(asked.execution_id)).version == asked.version
        rejected, is_accepted = await engine.answer(
            asked, found.question.suspension_id, Decision(approved=False), PERSON
        )
        assert (rejected.status, is_accepted) == ("running", True)


@requirement("scale:tools")
async def test_work_goes_to_the_process_whose_tool_is_the_newest(team: Team) -> None:
    peers = KnownPeers()
    peers.change(mail="digest of a newer version")
    async with team.member("mail", front=True) as front, team.member("mail", peers=peers) as old:
        running = await start(front, "t", step("mail", "mail"))
        for _ in range(3):
            await old.tick()
        assert (await front.find(running.execution_id)).version == running.version
        peers.change()
        await until(front, running, "completed")
