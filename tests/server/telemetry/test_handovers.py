"""What passes from one process to another: executions that are taken over, and decisions that wake another process."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import psycopg
import pytest
from pydantic import JsonValue

from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.silence import UNLIMITED_S
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.telemetry.telemetry import Telemetry
from planwarden.storage.postgres.liveness import GONE_S
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION
from planwarden.tools.registry import Registry
from tests.crash.scenario import PERSON, PRINCIPAL
from tests.race.test_engines import ASK, YES, Gate, step
from tests.requirements import requirement
from tests.server.telemetry.support import Watching
from tests.storage.suite import BACK_END_NAMES, BACK_ENDS, LEASE_S, BackEnd, Postgres
from tests.support.fakes import EffectLedger, SilentStore, recording_tool

pytestmark = pytest.mark.anyio
TAKEOVERS, WAKE_UPS = "planwarden.takeover.delay", "planwarden.wakeup.delay"
ALONE = step("alone", "slow")


class Fleet:
    """One store, and engines that are observed."""

    def __init__(self, back_end: BackEnd, folder: Path) -> None:
        self.back_end, self.clock = back_end, back_end.clock
        self._ledger = EffectLedger(folder / "effects")
        self.gate = Gate()

    @asynccontextmanager
    async def process(
        self, *, front: bool = False, is_held: bool = False, store: Store | None = None
    ) -> AsyncGenerator[tuple[Engine, Watching]]:
        """A front, or an engine that runs what it finds; its tool `slow` may be held at the gate."""
        watching = Watching()
        slow = recording_tool(self._ledger, "slow", before=self.gate.hold if is_held else None)
        engine = Engine(
            store or self.back_end.connect(),
            Registry([slow, recording_tool(self._ledger, "mail"), DISPLAY_CONFIRMATION]),
            CallerModel(),
            OperatorPolicy(),
            adopts=not front,
            follows=not front,
            grace_s=0.0,
            observer=Telemetry(watching.traces, watching.meters),
        )
        async with engine:
            yield engine, watching

    async def start(self, engine: Engine, *steps: dict[str, JsonValue]) -> ExecutionState:
        plan, _ = parse_plan({"todoList": list(steps)}, author="caller", tools=engine.tool_facts())
        return await engine.create(
            thread_id="t", requester=Requester(PRINCIPAL), goal=None, plan=plan, options=ev.Options()
        )


@pytest.fixture(params=BACK_END_NAMES)
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    back_end = BACK_ENDS[request.param](tmp_path / "home")
    try:
        with anyio.fail_after(60):
            yield Fleet(back_end, tmp_path)
    finally:
        await back_end.close()


async def answer(engine: Engine, execution: ExecutionState) -> ExecutionState:
    [asked] = (await engine.find(execution.execution_id)).open_suspensions
    answered, _ = await engine.answer(
        await engine.find(execution.execution_id), asked.question.suspension_id, YES, PERSON
    )
    return answered


async def until(watching: Watching, name: str, engine: Engine) -> list[tuple[dict[str, object], float]]:
    """The series of a histogram, once it has one."""
    while not (found := watching.points(name)):
        await engine.tick()
        await anyio.lowlevel.checkpoint()
    return found


@requirement("telemetry:handovers")
async def test_a_takeover_from_a_silent_process_is_counted_with_the_time_since_it_renewed(fleet: Fleet) -> None:
    async with (
        fleet.process(is_held=True, store=SilentStore(fleet.back_end.connect())) as (owner, watched),
        fleet.process() as (other, watching),
    ):
        began, passed_s = fleet.clock.steady(), 0.0
        await fleet.start(owner, ALONE)
        await fleet.gate.is_reached.wait()
        fleet.clock.advance(LEASE_S)
        while not watching.points(TAKEOVERS):
            passed_s = fleet.clock.steady() - began
            await other.tick()
            await anyio.lowlevel.checkpoint()
            fleet.clock.advance(UNLIMITED_S)
        [(labels, after_s)] = watching.points(TAKEOVERS)
        assert labels == {"planwarden.takeover.owner": "silent"}
        assert after_s == pytest.approx(passed_s) and watching.counts(TAKEOVERS) == [1]
        assert watched.points(TAKEOVERS) == [] and watching.points(WAKE_UPS) == []


@requirement("telemetry:handovers")
@pytest.mark.parametrize("fleet", ["postgres"], indirect=True)
async def test_a_takeover_from_a_dead_process_is_counted_with_the_time_since_it_lived(fleet: Fleet) -> None:
    async with (
        fleet.process(is_held=True, store=SilentStore(fleet.back_end.connect())) as (owner, _),
        fleet.process() as (other, watching),
    ):
        await fleet.start(owner, ALONE)
        await fleet.gate.is_reached.wait()
        assert isinstance(fleet.back_end, Postgres)
        # First the time, because the other process may look at any moment.
        fleet.clock.advance(GONE_S)
        with psycopg.connect(fleet.back_end.url) as connection:
            connection.execute("DELETE FROM owners WHERE owner = %s", (owner.owner,))
        [(labels, after_s)] = await until(watching, TAKEOVERS, other)
        assert (labels, after_s) == ({"planwarden.takeover.owner": "dead"}, pytest.approx(GONE_S))


@requirement("telemetry:handovers")
async def test_a_decision_that_a_front_stored_is_counted_where_the_execution_goes_on(fleet: Fleet) -> None:
    async with fleet.process(front=True) as (front, seen):
        async with fleet.process() as (worker, _):
            running = await fleet.start(front, ASK, step("mail", "mail", "ask"))
            await worker.wait(running, 60)
            while not (await front.find(running.execution_id)).open_suspensions:
                await worker.tick()
                await anyio.lowlevel.checkpoint()
        await answer(front, running)
        fleet.clock.advance(3.0)
        async with fleet.process() as (worker, watching):
            assert await until(watching, WAKE_UPS, worker) == [({}, pytest.approx(3.0))]
            assert watching.counts(WAKE_UPS) == [1]
            assert watching.points(TAKEOVERS) == [] and seen.points(WAKE_UPS) == []
