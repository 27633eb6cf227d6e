"""What a server over HTTP leaves behind when it is told to end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest

from tests.campaign.clients import HttpHost
from tests.campaign.ledger import Ledger
from tests.campaign.records import Records, read_file
from tests.campaign.shop import STAGE_VARIABLE
from tests.campaign.stage import SHOP
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

MAIN = "import sys; from planwarden.server.main import main; sys.exit(main())"


def start(home: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", MAIN, "--home", str(home), "serve", "--http", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), STAGE_VARIABLE: str(home.parent)}
    with log.open("wb") as errors:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=errors)


async def until(is_so: Callable[[], bool]) -> None:
    """Returns when it is so; the server tells this process nothing."""
    while True:
        if is_so():
            return
        await anyio.sleep(0.02)


async def test_a_server_that_is_told_to_end_records_what_its_call_returned_and_releases_the_execution(
    tmp_path: Path,
) -> None:
    """ours: `docker stop` and systemd send SIGTERM; nobody may be asked about a call that could end"""
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir(mode=0o700)
    (home / "planwarden.toml").write_text(f'[tools]\npython = ["{SHOP}"]\n', encoding="utf-8")
    server = start(home, log)
    with anyio.fail_after(60):
        try:
            await until(lambda: " listens on " in log.read_text())
            url = log.read_text().partition(" listens on ")[2].partition(";")[0]
            async with httpx2.AsyncClient(timeout=60) as http:
                call = {"toolName": "hold", "arguments": {"to": "go"}}
                plan = {"todoList": [{"id": "s0", "description": "hold", "toolCalls": [call]}]}
                await HttpHost(url, http).call("execute_plan", {"plan": plan, "options": {"waitSeconds": 0}})
            await until(lambda: bool(Ledger(tmp_path).lines("begun")))
            server.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            assert await anyio.to_thread.run_sync(server.wait) == 0, log.read_text()
        finally:
            server.kill()
            server.wait()
    records = Records(read_file(home / "planwarden.db"))
    [header] = records.headers()
    [found] = records.state(header).steps["s0"].calls
    assert (found.status, header.owner) == ("succeeded", None)
