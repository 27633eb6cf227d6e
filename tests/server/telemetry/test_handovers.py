"""What passes from one process to another: executions that are taken over, and decisions that wake another process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.lowlevel
import psycopg
import pytest

from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.unresponsive_owners import UNLIMITED_S
from planwarden.server.telemetry.telemetry import Telemetry
from planwarden.storage.postgres.liveness import GONE_S
from tests.harness.fault import SilentStore
from tests.harness.team import ASK, MAIL, SLOW, Gate, Team, answer, start
from tests.requirements import requirement
from tests.server.telemetry.support import Watching
from tests.storage.suite import LEASE_S, BackEnd, Postgres

pytestmark = pytest.mark.anyio
TAKEOVERS, WAKE_UPS = "planwarden.takeover.delay", "planwarden.wakeup.delay"


class Fleet(Team):
    """One store, and engines that are observed."""

    def __init__(self, back_end: BackEnd, folder: Path) -> None:
        super().__init__(back_end, folder)
        self.gate = Gate()

    @asynccontextmanager
    async def watch(
        self, *, front: bool = False, is_held: bool = False, is_silent: bool = False
    ) -> AsyncGenerator[tuple[Engine, Watching]]:
        """A front, or an engine that runs what it finds; its tool `slow` may be held at the gate."""
        watching = Watching()
        observer = Telemetry(watching.traces, watching.meters)
        async with self.process(
            self.gate if is_held else None,
            on=SilentStore if is_silent else lambda store: store,
            adopts=not front,
            follows=not front,
            observer=observer,
        ) as engine:
            yield engine, watching


@pytest.fixture
def fleet(back_end: BackEnd, tmp_path: Path) -> Fleet:
    return Fleet(back_end, tmp_path)


async def until(watching: Watching, name: str, engine: Engine) -> list[tuple[dict[str, object], float]]:
    """The series of a histogram, once it has one."""
    while not (found := watching.points(name)):
        await engine.tick()
        await anyio.lowlevel.checkpoint()
    return found


@requirement("telemetry:handovers")
async def test_a_takeover_from_a_silent_process_is_counted_with_the_time_since_it_renewed(fleet: Fleet) -> None:
    async with (
        fleet.watch(is_held=True, is_silent=True) as (owner, watched),
        fleet.watch() as (other, watching),
    ):
        began, passed_s = fleet.clock.steady(), 0.0
        await start(owner, SLOW)
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
@pytest.mark.parametrize("back_end", ["postgres"], indirect=True)
async def test_a_takeover_from_a_dead_process_is_counted_with_the_time_since_it_lived(fleet: Fleet) -> None:
    async with (
        fleet.watch(is_held=True, is_silent=True) as (owner, _),
        fleet.watch() as (other, watching),
    ):
        await start(owner, SLOW)
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
    async with fleet.watch(front=True) as (front, seen):
        async with fleet.watch() as (worker, _):
            running = await start(front, ASK, MAIL)
            await worker.wait(running, 60)
            while not (await front.find(running.execution_id)).open_suspensions:
                await worker.tick()
                await anyio.lowlevel.checkpoint()
        await answer(front, running)
        fleet.clock.advance(3.0)
        async with fleet.watch() as (worker, watching):
            assert await until(watching, WAKE_UPS, worker) == [({}, pytest.approx(3.0))]
            assert watching.counts(WAKE_UPS) == [1]
            assert watching.points(TAKEOVERS) == [] and seen.points(WAKE_UPS) == []
