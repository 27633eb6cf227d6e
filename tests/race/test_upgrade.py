"""Two versions of planwarden on one PostgreSQL, as during an upgrade: the older processes still run."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from tests.harness.clients import HttpHost, Refused
from tests.harness.database import SharedDatabase
from tests.harness.ledger import Ledger
from tests.harness.process import STAGE
from tests.harness.records import Records
from tests.harness.stage import SHOP
from tests.requirements import requirement
from tests.support.newer import build_newer
from tests.support.paths import ROOT
from tests.support.postgres import shared_server

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

MAIN = "import sys; from planwarden.server.main import main; sys.exit(main())"
SETTINGS = '[tools]\npython = ["{shop}"]\n[execution]\nwaitSeconds = 0\n'
REFUSED = "was written by a newer planwarden"


@dataclass
class Member:
    """One process of one version."""

    process: subprocess.Popen[bytes]
    log: Path

    def read_log(self) -> str:
        return self.log.read_text(encoding="utf-8")

    async def wait_for(self, pattern: str) -> str:
        """The first group of the pattern in what the process said."""
        while (found := re.search(pattern, self.read_log())) is None:
            assert self.process.poll() is None, self.read_log()
            await anyio.sleep(0.05)
        return found.group(1)


@dataclass
class Upgrade:
    folder: Path
    database: SharedDatabase
    http: httpx2.AsyncClient
    members: list[Member] = field(default_factory=list[Member])

    def start(self, *arguments: str, newer: bool = False) -> Member:
        """A process of one of the versions."""
        paths = [str(self.folder / "newer")] if newer else []
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*paths, str(ROOT)]),
            STAGE: str(self.folder),
            "PLANWARDEN_SECRET_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
        }
        log = self.folder / f"log-{len(self.members)}"
        command = [sys.executable, "-c", MAIN, "--home", str(self.folder / "home"), *arguments]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, "--store", self.database.url],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )
        self.members.append(Member(process, log))
        return self.members[-1]

    async def start_worker(self, *, newer: bool = False) -> Member:
        worker = self.start("worker", "--concurrency", "8", newer=newer)
        await worker.wait_for("planwarden (works on)")
        return worker

    async def start_front(self, *, newer: bool = False) -> HttpHost:
        front = self.start("serve", "--http", "--port", "0", "--role", "front", newer=newer)
        url = await front.wait_for(r"listens on (http://\S+)/mcp")
        return HttpHost(f"{url}/mcp", self.http)

    async def wait_for(self, execution_id: str, status: str) -> None:
        """Until the execution has that status."""
        records = Records(self.database.fetch)
        while {header.execution_id: header.status for header in records.headers()}[execution_id] != status:
            assert all(member.process.poll() is None for member in self.members)
            await anyio.sleep(0.05)

    async def wait_for_call(self, what: str, execution_id: str) -> int:
        """The process that began or ended the first call of the execution."""
        while True:
            for line in Ledger.of(self.folder).lines(what):
                if line.key.startswith(execution_id):
                    return line.pid
            await anyio.sleep(0.05)

    def list_effects(self) -> list[str]:
        return sorted(line.key for line in Ledger.of(self.folder).lines("done"))

    def close(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.wait()
        self.database.close(None)


@pytest.fixture
async def upgrade(tmp_path: Path) -> AsyncIterator[Upgrade]:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "planwarden.toml").write_text(SETTINGS.format(shop=SHOP), encoding="utf-8")
    build_newer(tmp_path / "newer")
    async with httpx2.AsyncClient(timeout=60.0) as http:
        found = Upgrade(tmp_path, SharedDatabase(shared_server()), http)
        try:
            with anyio.fail_after(150):
                yield found
        finally:
            await anyio.to_thread.run_sync(found.close)


def jot(number: int) -> dict[str, Any]:
    return {"toolName": "jot", "arguments": {"amount": number, "to": "Ada"}}


async def execute(front: HttpHost, *calls: dict[str, Any], goal: str | None = None) -> dict[str, Any]:
    """A started execution of steps that follow each other."""
    steps = [
        {"id": f"s{number}", "description": "note", "toolCalls": [call]} for number, call in enumerate(calls, start=1)
    ]
    return await front.call("execute_plan", {"plan": {"todoList": steps}, **({} if goal is None else {"goal": goal})})


@requirement("scale:upgrade")
async def test_older_processes_go_on_with_what_they_can_read_and_leave_the_rest_to_newer_ones(upgrade: Upgrade) -> None:
    old_front, old_worker = await upgrade.start_front(), await upgrade.start_worker()
    held = await execute(old_front, {"toolName": "hold", "arguments": {"to": "go"}}, jot(1))
    stopped = await execute(old_front, {"toolName": "hold", "arguments": {"to": "go"}}, jot(2))
    for begun in (held, stopped):
        assert await upgrade.wait_for_call("begun", begun["executionId"]) == old_worker.process.pid

    new_front = await upgrade.start_front(newer=True)
    refused = upgrade.start("worker")
    assert await anyio.to_thread.run_sync(refused.process.wait) == 1
    assert REFUSED in refused.read_log() and "Traceback" not in refused.read_log(), refused.read_log()
    upgrade.members.remove(refused)

    # Every process carries out what every version can read.
    plain = [await execute(front, jot(number)) for number, front in enumerate((old_front, new_front), 3)]
    for started in plain:
        await upgrade.wait_for(started["executionId"], "completed")

    # What only newer ones can read is left by older ones, whose effects end in peace.
    foreign = await execute(new_front, jot(5), goal="a footnote")
    await new_front.call("cancel_execution", {"threadId": stopped["threadId"]})
    with pytest.raises(Refused, match=REFUSED):
        await old_front.call("get_execution", {"threadId": foreign["threadId"]})
    await old_worker.wait_for(f"({REFUSED})")
    (upgrade.folder / "go").touch()
    await upgrade.wait_for(held["executionId"], "completed")

    await upgrade.start_worker(newer=True)
    await upgrade.wait_for(foreign["executionId"], "completed")
    await upgrade.wait_for_call("ended", stopped["executionId"])
    await upgrade.wait_for(stopped["executionId"], "cancelled")
    late = await execute(old_front, jot(6))
    await upgrade.wait_for(late["executionId"], "completed")

    keys = [f"{held['executionId']}:s1:1", f"{held['executionId']}:s2:1", f"{stopped['executionId']}:s1:1"]
    keys += [f"{started['executionId']}:s1:1" for started in (*plain, foreign, late)]
    assert upgrade.list_effects() == sorted(keys)
    assert all("Traceback" not in member.read_log() for member in upgrade.members)
