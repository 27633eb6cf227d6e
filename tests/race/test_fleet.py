"""Four real processes on one PostgreSQL: one is killed in the middle of an effect, another one stands still in one."""

import random
import signal
from pathlib import Path

import anyio
import pytest

from tests.campaign.checks import Checker
from tests.campaign.rounds import look_whether_woken_works
from tests.harness.database import SharedDatabase
from tests.harness.ledger import Ledger, Line
from tests.harness.people import People
from tests.harness.process import Process, poll
from tests.harness.stage import Cast, Stage, open_stage
from tests.harness.team import step
from tests.requirements import requirement
from tests.support.postgres import shared_server

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CAST = Cast(("front", "worker", "worker", "worker"), "hasty")


class Fleet:
    """A stage, and somebody who answers every question truthfully."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.ledger = Ledger.of(stage.folder)
        self.people = People(stage, random.Random(1), is_hasty=True)

    async def start(self, name: str) -> tuple[str, Process]:
        """Starts an effect that ends once the file of that name is there. Its execution, and who carries it out."""
        steps = [
            step("s0", "hold", arguments={"to": name}),
            step("s1", "jot", "s0", arguments={"amount": 1, "to": name}),
        ]
        front = self.stage.servers[0].http
        assert front is not None
        started = await front.call("execute_plan", {"plan": {"todoList": steps}, "options": {"waitSeconds": 0}})
        execution_id = started["executionId"]
        self.stage.testimony.started.append(execution_id)
        [begun] = await poll(lambda: self.list_lines("begun", execution_id))
        return execution_id, self.stage.launcher.started[begun.pid]

    def list_lines(self, what: str, execution_id: str) -> list[Line]:
        """About the execution's first step."""
        return [line for line in self.ledger.lines(what) if line.key.startswith(f"{execution_id}:s0")]

    async def wait_for_takeover(self, execution_id: str) -> int:
        """The process that ended the ownership of another one."""
        database = self.stage.database
        assert database is not None
        takes = await poll(lambda: [take for take in database.list_takes() if take.execution_id == execution_id])
        return takes[0].taker

    async def wait_for_question(self, execution_id: str) -> None:
        await poll(lambda: [row for row in self.stage.records.pending() if row.execution_id == execution_id])

    async def settle(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.people.answer_all)
            await poll(lambda: not self.stage.records.unfinished())
            tasks.cancel_scope.cancel()


@requirement("scale:takeover")
async def test_what_a_killed_and_a_stopped_worker_left_is_taken_over_and_nothing_happens_twice(tmp_path: Path) -> None:
    database = SharedDatabase(shared_server())
    try:
        with anyio.fail_after(120):
            async with open_stage(tmp_path / "stage", CAST, database=database) as stage:
                fleet = Fleet(stage)
                left, killed = await fleet.start("never")
                killed.end(signal.SIGKILL)
                assert await fleet.wait_for_takeover(left) != killed.pid
                (stage.folder / "never").touch()
                await fleet.settle()

                slept, stopped = await fleet.start("late")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(stopped.pause, 60.0)
                    assert await fleet.wait_for_takeover(slept) != stopped.pid
                    await fleet.wait_for_question(slept)
                    (stage.folder / "late").touch()
                    tasks.cancel_scope.cancel()
                await fleet.settle()

                assert [line.pid for line in fleet.list_lines("done", slept)] == [stopped.pid]
                assert await Checker(stage).breaches() == []
                assert not stopped.has_ended
                assert await look_whether_woken_works(stage) == []
    finally:
        database.close(None)
