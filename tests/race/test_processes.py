"""Real processes on one store: killed, stopped in the middle of an effect, and of two versions as during an upgrade."""

import math
import random
import shutil
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from pydantic import JsonValue

from tests.campaign.checks import Checker
from tests.campaign.mishaps import KILLS
from tests.campaign.rounds import KILLED, look_whether_woken_works, run_stage
from tests.harness.clients import HttpHost, Refused
from tests.harness.ledger import Ledger
from tests.harness.people import People
from tests.harness.process import Patience, Process, poll
from tests.harness.stage import Cast, Kind, Server, SharedDatabase, Stage, open_stage
from tests.harness.team import step
from tests.kit import first_only, requirement
from tests.race.racer import race_again_and_again
from tests.race.ticks import Campaign
from tests.support.paths import ROOT
from tests.support.postgres import shared_server

REFUSED = "was written by a newer planwarden"


PACKAGE = ROOT / "src" / "planwarden"
MIGRATION = "CREATE TABLE footnotes (text text NOT NULL);\nALTER TABLE executions ADD COLUMN footnote text;\n"
CREATED = """\
        has_goal = any(isinstance(event, ev.ExecutionCreated) and event.goal for event in events)
        batch = EventBatch((*events, ev.Footnote()) if has_goal else events, start=start, artifacts=artifacts)
"""
EDITS = {
    "agent/core/execution/events.py": [
        ("class CancelRequested(", 'class Footnote(Event, tag="FN"):\n    text: str = ""\n\n\nclass CancelRequested('),
    ],
    # It notes something whenever an execution is cancelled, and at the start of those with a goal.
    "agent/runtime/commands.py": [
        ("(ev.CancelRequested(reason=reason),)", "(ev.CancelRequested(reason=reason), ev.Footnote())"),
    ],
    "agent/runtime/engine.py": [("        batch = EventBatch(events, start=start, artifacts=artifacts)\n", CREATED)],
}


def build_newer(folder: Path) -> None:
    """Writes a newer planwarden into the folder, which belongs in front of `PYTHONPATH`.

    Its schema has one more version, and its logs have one more event.
    """
    target = folder / "planwarden"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    migrations = target / "storage" / "postgres" / "migrations"
    (migrations / f"{len(list(migrations.glob('*.sql'))) + 1:04}_footnotes.sql").write_text(MIGRATION)
    for name, edits in EDITS.items():
        path = target / name
        text = path.read_text(encoding="utf-8")
        for old, new in edits:
            assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


@requirement("crash:sigkill")
@pytest.mark.slow
@pytest.mark.parametrize("rounds", first_only(1, 4))
async def test_killed_processes_that_share_one_home_break_nothing(tmp_path: Path, rounds: int) -> None:
    outcomes = await run_stage(tmp_path / "stage", 12, rounds, math.inf, cast=KILLED, mishaps=KILLS)
    assert [breach for outcome in outcomes for breach in outcome.breaches] == []
    assert sum(outcome.effects for outcome in outcomes) > 0
    assert any(outcome.mishaps for outcome in outcomes)


@requirement("race:decision", "store:one-winner")
@pytest.mark.slow
def test_every_question_has_one_winner_and_at_most_one_effect(tmp_path: Path) -> None:
    report = race_again_and_again(tmp_path, 40, seed=40)
    assert report.broken == []
    assert report.won.keys() == {"approved", "rejected", "timed_out"}


@requirement("schedule:once")
@pytest.mark.slow
@pytest.mark.parametrize("minutes", first_only(4, 80))
def test_ticks_over_two_processes_killed_at_random_start_each_run_once(tmp_path: Path, minutes: int) -> None:
    campaign = Campaign(tmp_path / "ticks", 20, minutes, random.Random(7), life_s=0.2)
    assert campaign.run() == []
    assert len(campaign.expected) == 20 * minutes


def jot(number: int) -> dict[str, JsonValue]:
    return step("jot", "jot", "hold", arguments={"amount": number, "to": "Ada"})


class Fleet:
    """A stage on PostgreSQL whose effects end once a file is there."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.ledger = stage, Ledger.of(stage.folder)

    async def execute(self, front: HttpHost | None, *steps: JsonValue, goal: str | None = None) -> dict[str, Any]:
        assert front is not None
        given: dict[str, Any] = {"plan": {"todoList": [*steps]}, "options": {"waitSeconds": 0}}
        started = await front.call("execute_plan", given if goal is None else {**given, "goal": goal})
        self.stage.testimony.started.append(started["executionId"])
        return started

    async def hold(self, front: HttpHost | None, until: str, number: int) -> tuple[dict[str, Any], Process]:
        """Start an effect that ends once the file of that name is there, and another one after it."""
        started = await self.execute(front, step("hold", "hold", arguments={"to": until}), jot(number))
        return started, self.stage.launcher.started[await self.wait_for_call("begun", started)]

    async def wait_for_call(self, what: str, execution: dict[str, Any]) -> int:
        """Return the process that began, did or ended the first call of the execution."""
        key = f"{execution['executionId']}:hold"
        calls = await poll(lambda: [line for line in self.ledger.lines(what) if line.key.startswith(key)])
        return calls[0].pid

    async def wait_for(self, execution: dict[str, Any], status: str) -> None:
        def has_status() -> bool:
            statuses = {header.execution_id: header.status for header in self.stage.records.headers()}
            return statuses[execution["executionId"]] == status

        await poll(has_status)

    async def wait_for_takeover(self, execution: dict[str, Any]) -> int:
        database, execution_id = self.stage.database, execution["executionId"]
        assert database is not None
        takes = await poll(lambda: [take for take in database.list_takes() if take.execution_id == execution_id])
        return takes[0].taker

    async def settle(self) -> None:
        """Return when everything has ended, while somebody answers every question truthfully."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(People(self.stage, random.Random(1), is_hasty=True).answer_all)
            await poll(lambda: not self.stage.records.unfinished())
            tasks.cancel_scope.cancel()

    async def start_newer(self, kind: Kind) -> Server:
        launcher = self.stage.launcher
        launcher.python_path = f"{self.stage.folder / 'newer'}:{ROOT}"
        try:
            return await self.stage.start(kind)
        finally:
            launcher.python_path = ""


@asynccontextmanager
async def open_fleet(folder: Path, *kinds: Kind, patience: Patience | None) -> AsyncGenerator[Fleet]:
    database = SharedDatabase(shared_server())
    try:
        with anyio.fail_after(150):
            async with open_stage(folder, Cast(kinds, patience), database=database) as stage:
                yield Fleet(stage)
    finally:
        database.close(None)


@requirement("scale:takeover")
@pytest.mark.slow
async def test_what_a_killed_and_a_stopped_worker_left_is_taken_over_and_nothing_happens_twice(tmp_path: Path) -> None:
    async with open_fleet(tmp_path / "stage", "front", "worker", "worker", "worker", patience="hasty") as fleet:
        stage = fleet.stage
        front = stage.servers[0].http
        left, killed = await fleet.hold(front, "never", 1)
        killed.end(signal.SIGKILL)
        assert await fleet.wait_for_takeover(left) != killed.pid
        (stage.folder / "never").touch()
        await fleet.settle()

        slept, stopped = await fleet.hold(front, "late", 2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stopped.pause, 60.0)
            assert await fleet.wait_for_takeover(slept) != stopped.pid
            await poll(lambda: [row for row in stage.records.pending() if row.execution_id == slept["executionId"]])
            (stage.folder / "late").touch()
            tasks.cancel_scope.cancel()
        await fleet.settle()

        assert await fleet.wait_for_call("done", slept) == stopped.pid
        assert await Checker(stage).breaches() == []
        assert not stopped.has_ended
        assert await look_whether_woken_works(stage) == []


@requirement("scale:upgrade")
@pytest.mark.postgres
async def test_older_processes_go_on_with_what_they_can_read_and_leave_the_rest_to_newer_ones(tmp_path: Path) -> None:
    build_newer(tmp_path / "stage" / "newer")
    async with open_fleet(tmp_path / "stage", "front", "worker", patience=None) as fleet:
        stage = fleet.stage
        # Newer processes migrate the database, while the stage's patience is for what is quick.
        stage.browser.timeout = httpx2.Timeout(60.0)
        old_front, old_worker = stage.servers[0].http, stage.servers[1].process
        held, stopped = [(await fleet.hold(old_front, "go", number))[0] for number in (1, 2)]

        new_front = (await fleet.start_newer("front")).http
        refused = stage.launcher.without_input("worker")
        assert await refused.wait(60) == 1
        assert REFUSED in refused.read_log(), refused.read_log()

        # Every process carries out what every version can read.
        plain = [await fleet.execute(front, {**jot(3), "dependencies": []}) for front in (old_front, new_front)]
        for started in plain:
            await fleet.wait_for(started, "completed")

        # What only newer ones can read is left by older ones, whose effects end in peace.
        foreign = await fleet.execute(new_front, {**jot(5), "dependencies": []}, goal="a footnote")
        assert old_front is not None and new_front is not None
        await new_front.call("cancel_execution", {"threadId": stopped["threadId"]})
        with pytest.raises(Refused, match=REFUSED):
            await old_front.call("get_execution", {"threadId": foreign["threadId"]})
        await old_worker.wait_for_log(f"({REFUSED})")
        (stage.folder / "go").touch()
        await fleet.wait_for(held, "completed")

        await fleet.start_newer("worker")
        await fleet.wait_for(foreign, "completed")
        await fleet.wait_for_call("ended", stopped)
        await fleet.wait_for(stopped, "cancelled")
        late = await fleet.execute(old_front, {**jot(6), "dependencies": []})
        await fleet.wait_for(late, "completed")

        keys = [f"{execution['executionId']}:hold:1" for execution in (held, stopped)]
        keys += [f"{execution['executionId']}:jot:1" for execution in (held, *plain, foreign, late)]
        assert sorted(fleet.ledger.effects().elements()) == sorted(keys)
        assert all(server.is_alive for server in stage.servers)
        assert all("Traceback" not in process.read_log() for process in stage.launcher.started.values())
