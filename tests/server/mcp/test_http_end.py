"""What a server over HTTP, a process of its own, writes into its log, and leaves behind when it is told to end."""

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

from tests.harness.clients import HttpHost
from tests.harness.ledger import Ledger
from tests.harness.process import STAGE
from tests.harness.records import Records, read_file
from tests.harness.stage import SHOP
from tests.kit import Settings, requirement
from tests.server.mcp.http_support import bearing, token_for
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

MAIN = """
import sys
import planwarden.agent.runtime.engine as engine
from planwarden.server.main import main
# The call ends when this test lets it, however busy the machine is.
engine.GRACE_S = 3_600.0
sys.exit(main())
"""
SECRET = "whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="
CONFIGURATION = f"""
[tools]
python = ["{SHOP}"]

[hooks.orders]
plan = "order"
secret_env = "ORDERS"
"""
HOLD = {"id": "s0", "description": "hold", "toolCalls": [{"toolName": "hold", "arguments": {"to": "go"}}]}


async def until(is_so: Callable[[], bool]) -> None:
    """Return when it is so; the server tells this process nothing."""
    while True:
        if is_so():
            return
        await anyio.sleep(0.02)


def start(home: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", MAIN, "--home", str(home), "serve", "--http", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), STAGE: str(home.parent), "ORDERS": SECRET}
    with log.open("wb") as errors:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=errors)


@requirement("access:logged")
async def test_a_server_that_ends_records_what_its_call_returned_and_has_logged_refusals_without_secrets(
    tmp_path: Path,
) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir(mode=0o700)
    (home / "planwarden.toml").write_text(CONFIGURATION, encoding="utf-8")
    token = bearing(await token_for(Settings(home=home), "ann"))
    server = start(home, log)
    with anyio.fail_after(60):
        try:
            await until(lambda: " listens on " in log.read_text())
            url = log.read_text().partition(" listens on ")[2].partition(";")[0]
            async with httpx2.AsyncClient(timeout=60) as http:
                for address, headers in (
                    (url, bearing("pwt_guessed")),
                    (url.replace("/mcp", "/hooks/orders"), {"webhook-signature": "v1,guessed"}),
                    (url.replace("/mcp", "/hooks/guessed"), {}),
                ):
                    assert (await http.post(address, json={}, headers=headers)).status_code == 401
            async with httpx2.AsyncClient(timeout=60, headers=token) as http:
                arguments = {"plan": {"todoList": [HOLD]}, "options": {"waitSeconds": 0}}
                await HttpHost(url, http).call("execute_plan", arguments)
            await until(lambda: bool(Ledger.of(tmp_path).lines("begun")))
            server.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            assert await anyio.to_thread.run_sync(server.wait) == 0, log.read_text()
        finally:
            server.kill()
            server.wait()
    records = Records(read_file(home / "planwarden.db"))
    [header] = records.headers()
    [call] = records.state(header).steps["s0"].calls
    assert (call.status, header.owner) == ("succeeded", None)
    said = log.read_text()
    assert "refused a bearer token from 127.0.0.1: unknown, expired" in said
    assert "hook 'orders' refused a request: it is not signed" in said
    assert "refused a request for a hook that this server does not have" in said
    assert "guessed" not in said and SECRET not in said
