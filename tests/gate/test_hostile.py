"""Servers and hosts that break every rule: the gate lives on, within its memory, and says which server it was."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup

from tests.gate.host import Home, read_text
from tests.requirements import requirement

pytestmark = pytest.mark.anyio
ACTS = {
    "two answers": "'number': 1",
    "a flood": "'number': 500}",
    "a large answer": "server 'peer' sent more than 33554432 bytes in one message",
    "a large line": "server 'peer' ended before it answered: it sent more than 33554432 bytes in one message",
}
START = "[servers.peer]\nstart_timeout_s = 5\n"
MAX_MEMORY_KB = 256 * 1024


@pytest.fixture
async def tasks() -> AsyncGenerator[TaskGroup]:
    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            yield group
            group.cancel_scope.cancel()


@pytest.mark.parametrize("serves_all", [False, True])
@requirement("gate:hostile")
async def test_gate_outlives_its_server_and_its_host(tmp_path: Path, tasks: TaskGroup, *, serves_all: bool) -> None:
    home, name = Home(tmp_path, more=START), "peer_look" if serves_all else "look"
    (home.peer / "odd").touch()
    async with home.host(tasks, serves_all=serves_all) as host:
        assert len((await host.ask("tools/list", {}))["result"]["tools"]) == (6 if serves_all else 7)
        for act, outcome in ACTS.items():
            answer = await host.ask("tools/call", {"name": name, "arguments": {"act": act}})
            assert outcome in str(answer)
            assert read_text(await host.call(name, {})) == "look {} []"
        (home.peer / "mute").touch()
        hung = await host.begin_call(name, {"act": "silence"})
        others = [await host.begin_call(name, {}) for _ in range(1_000)]
        assert "1000 requests are under way" in (await host.wait(others.pop()))["error"]["message"]
        await host.send({"id": hung, "method": "ping"})
        assert "no other request under way has it" in (await host.wait(hung))["error"]["message"]
        # The server hears of it, and ends.
        await host.send({"method": "notifications/cancelled", "params": {"requestId": hung}})
        for other in others:
            assert (await host.wait(other))["error"]["message"].startswith("server 'peer' ")
        # Started again, it reads nothing and answers nothing: both are told at the same time.
        calls = [await host.begin_call(name, {})]
        await host.send({"method": "notifications/odd", "params": {"padding": "x" * 1_000_000}})
        calls.append(await host.begin_call(name, {}))
        for call in calls:
            error = (await host.wait(call))["error"]["message"]
            assert error == "server 'peer' cannot be reached: it did not answer within 5 s"
        assert _read_peak_kb(host.process.pid) < MAX_MEMORY_KB


def _read_peak_kb(pid: int) -> int:
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return int(peak)
