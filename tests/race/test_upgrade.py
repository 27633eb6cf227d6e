"""Two versions of planwarden on one PostgreSQL, as during an upgrade: the older processes still run."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.harness.clients import HttpHost, Refused
from tests.harness.database import SharedDatabase
from tests.harness.ledger import Ledger
from tests.harness.process import poll
from tests.harness.stage import Cast, Kind, Server, Stage, open_stage
from tests.requirements import requirement
from tests.support.newer import build_newer
from tests.support.paths import ROOT
from tests.support.postgres import shared_server

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

REFUSED = "was written by a newer planwarden"
HOLD = {"toolName": "hold", "arguments": {"to": "go"}}


class Upgrade:
    """A stage whose processes are of two versions."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.ledger = stage, Ledger.of(stage.folder)
        # Newer processes migrate the database, while the stage's patience is for what is quick.
        stage.browser.timeout = httpx2.Timeout(60.0)

    async def start(self, kind: Kind) -> Server:
        """Start a process of the newer version."""
        launcher = self.stage.launcher
        launcher.python_path = f"{self.stage.folder / 'newer'}:{ROOT}"
        try:
            return await self.stage.start(kind)
        finally:
            launcher.python_path = ""

    async def wait_for(self, execution: dict[str, Any], status: str) -> None:
        def has_status() -> bool:
            assert all(server.is_alive for server in self.stage.servers)
            statuses = {header.execution_id: header.status for header in self.stage.records.headers()}
            return statuses[execution["executionId"]] == status

        await poll(has_status)

    async def wait_for_call(self, what: str, execution: dict[str, Any]) -> int:
        """Return the process that began or ended the first call of the execution."""
        lines = self.ledger.lines
        calls = await poll(lambda: [line for line in lines(what) if line.key.startswith(execution["executionId"])])
        return calls[0].pid


@pytest.fixture
async def upgrade(tmp_path: Path) -> AsyncIterator[Upgrade]:
    database, folder = SharedDatabase(shared_server()), tmp_path / "stage"
    build_newer(folder / "newer")
    try:
        with anyio.fail_after(150):
            async with open_stage(folder, Cast(("front", "worker"), None), database=database) as stage:
                yield Upgrade(stage)
    finally:
        database.close(None)


def jot(number: int) -> dict[str, Any]:
    return {"toolName": "jot", "arguments": {"amount": number, "to": "Ada"}}


async def execute(front: HttpHost | None, *calls: dict[str, Any], goal: str | None = None) -> dict[str, Any]:
    """Start an execution of steps that follow each other."""
    assert front is not None
    steps = [{"id": f"s{number}", "description": "note", "toolCalls": [call]} for number, call in enumerate(calls, 1)]
    return await front.call("execute_plan", {"plan": {"todoList": steps}, **({} if goal is None else {"goal": goal})})


@requirement("scale:upgrade")
async def test_older_processes_go_on_with_what_they_can_read_and_leave_the_rest_to_newer_ones(upgrade: Upgrade) -> None:
    old_front, old_worker = upgrade.stage.servers[0].http, upgrade.stage.servers[1].process
    held, stopped = await execute(old_front, HOLD, jot(1)), await execute(old_front, HOLD, jot(2))
    for begun in (held, stopped):
        assert await upgrade.wait_for_call("begun", begun) == old_worker.pid

    new_front = (await upgrade.start("front")).http
    refused = upgrade.stage.launcher.without_input("worker")
    assert await refused.wait(60) == 1
    assert REFUSED in refused.read_log() and "Traceback" not in refused.read_log(), refused.read_log()

    # Every process carries out what every version can read.
    plain = [await execute(front, jot(number)) for number, front in enumerate((old_front, new_front), 3)]
    for started in plain:
        await upgrade.wait_for(started, "completed")

    # What only newer ones can read is left by older ones, whose effects end in peace.
    foreign = await execute(new_front, jot(5), goal="a footnote")
    assert old_front is not None and new_front is not None
    await new_front.call("cancel_execution", {"threadId": stopped["threadId"]})
    with pytest.raises(Refused, match=REFUSED):
        await old_front.call("get_execution", {"threadId": foreign["threadId"]})
    await old_worker.wait_for_log(f"({REFUSED})")
    (upgrade.stage.folder / "go").touch()
    await upgrade.wait_for(held, "completed")

    await upgrade.start("worker")
    await upgrade.wait_for(foreign, "completed")
    await upgrade.wait_for_call("ended", stopped)
    await upgrade.wait_for(stopped, "cancelled")
    late = await execute(old_front, jot(6))
    await upgrade.wait_for(late, "completed")

    keys = [f"{held['executionId']}:s1:1", f"{held['executionId']}:s2:1", f"{stopped['executionId']}:s1:1"]
    keys += [f"{started['executionId']}:s1:1" for started in (*plain, foreign, late)]
    assert sorted(upgrade.ledger.effects().elements()) == sorted(keys)
    assert all("Traceback" not in process.read_log() for process in upgrade.stage.launcher.started.values())
