"""What a server does before its first answers, and what happens to a call right after them."""

import json
import math
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from mcp import Client

from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.agent.models.caller import CallerModel
from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.mcp import lazy_service
from planwarden.server.mcp.server import PlanwardenServer, build_server
from planwarden.server.settings.configuration import Settings
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.server.mcp.support import ok, refused
from tests.support.slices import first_only

HEAVY = (
    "jsonschema_rs",
    "planwarden.agent.runtime.engine",
    "planwarden.agent.models.provider",
    "planwarden.agent.runtime.run",
    "planwarden.server.api.audit",
    "planwarden.server.inbox",
    "planwarden.server.notifications.sender",
    "planwarden.server.api.opening",
    "planwarden.server.signatures",
    "planwarden.server.cli.terminal",
    "planwarden.server.views.graph.svg",
    "planwarden.storage.opening",
    "planwarden.storage.ports.complete",
    "planwarden.storage.ports.keys",
    "planwarden.storage.ports.notifications",
    "planwarden.storage.ports.sessions",
    "planwarden.storage.ports.tokens",
    "planwarden.storage.postgres",
    "planwarden.storage.sealing",
    "planwarden.storage.sql",
    "planwarden.storage.sqlite",
    "planwarden.tools.delegate.delegation",
    "planwarden.tools.downstream.call",
    "planwarden.tools.downstream.connection",
    "planwarden.tools.downstream.servers",
    "planwarden.tools.web.fetch",
)
"""Packages and modules that do nothing before a store is open."""

AT_MOST = 125
"""Modules of ours before the first answers; each costs every start about a millisecond."""

SERVE = """
import math
import sys

from planwarden.server.main import main
from planwarden.server.mcp import lazy_service
from planwarden.server.mcp.server import PlanwardenServer

listing = PlanwardenServer.list_tools

async def list_tools(self):
    found = await listing(self)
    # Packages hold a docstring and nothing else.
    modules = [name for name, module in sys.modules.items() if not hasattr(module, "__path__")]
    named = ("planwarden.", "jsonschema_rs.")
    print(*sorted((name for name in modules if name.startswith(named)), reverse=True), file=sys.stderr)
    return found

PlanwardenServer.list_tools = list_tools
lazy_service.HEADSTART_S = math.inf
sys.exit(main(["--home", sys.argv[1], "serve"]))
"""


@dataclass
class Gate:
    """An opening that waits until it may, counts how often it began, and fails if it is to."""

    home: Path
    failure: PlanwardenError | None = None
    may_open: anyio.Event = field(default_factory=anyio.Event)
    has_begun: anyio.Event = field(default_factory=anyio.Event)
    begun: int = 0

    def server(self) -> PlanwardenServer:
        return build_server(self.opening)

    @asynccontextmanager
    async def opening(self) -> AsyncGenerator[Service]:
        self.begun += 1
        self.has_begun.set()
        await self.may_open.wait()
        if self.failure is not None:
            raise self.failure
        async with Warden(settings=Settings(home=self.home), model=CallerModel(), store=MemoryStore()) as warden:
            yield warden.service


def _served(home: Path, *requests: tuple[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], int, str]:
    """Answers, exit code and stderr of a server process that receives the requests all at once."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages = [
        _message("initialize", params, id=0),
        _message("notifications/initialized", {}),
        *(_message(method, given, id=number) for number, (method, given) in enumerate(requests, 1)),
    ]
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("".join(messages))
        process.stdin.flush()
        # The server answers nothing after its input ends; if it refuses to start, its output ends.
        lines = [line for _, line in zip(range(len(requests) + 1), process.stdout, strict=False)]
        rest, errors = process.communicate(timeout=60)
    assert rest == ""
    answers: list[dict[str, Any]] = sorted((json.loads(line) for line in lines), key=lambda answer: answer["id"])
    return answers, process.returncode, errors


def _message(method: str, params: dict[str, Any], **named: int) -> str:
    return json.dumps({"jsonrpc": "2.0", **named, "method": method, "params": params}) + "\n"


def hold_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a request makes a server open."""
    monkeypatch.setattr(lazy_service, "HEADSTART_S", math.inf)


@pytest.mark.slow
@requirement("start:light")
def test_the_first_answers_import_nothing_that_only_an_open_store_needs(tmp_path: Path) -> None:
    _, _, errors = _served(tmp_path, ("tools/list", {}))
    [line] = [line for line in errors.splitlines() if line.startswith("planwarden.")]
    imported = line.split()
    heavy = [name for name in imported if any(name == found or name.startswith(f"{found}.") for found in HEAVY)]
    assert heavy == []
    assert 10 < len(imported) <= AT_MOST, "import what only an open store needs in server/api/opening.py"


@pytest.mark.slow
@requirement("start:failure")
def test_a_database_that_cannot_be_opened_is_the_answer_to_a_call_that_did_not_wait_for_anything(
    tmp_path: Path,
) -> None:
    (tmp_path / "planwarden.db").mkdir()
    call: tuple[str, dict[str, Any]] = ("tools/call", {"name": "list_suspensions", "arguments": {}})
    answers, code, errors = _served(tmp_path, call, call)
    assert code == 0 and "cannot open the store" in errors and "Traceback" not in errors
    assert [answer["result"]["structuredContent"]["error"]["code"] for answer in answers[1:]] == ["storage_error"] * 2


@pytest.mark.slow
@requirement("start:failure")
@pytest.mark.parametrize(
    ("file", "text", "said"),
    first_only(
        ("planwarden.toml", '[tools]\npython = ["gone.py"]\n', "gone.py"),
        ("planwarden.toml", '[tools."no_such"]\nrisk = "read"\n', "no_such"),
        ("planwarden.toml", 'model = "scripted:gone.json"\n', "gone.json"),
        ("planwarden.json", "not JSON", "planwarden.json"),
    ),
)
def test_a_setting_that_cannot_be_used_is_refused_before_anything_is_served(
    tmp_path: Path, file: str, text: str, said: str
) -> None:
    (tmp_path / file).write_text(text)
    answers, code, errors = _served(tmp_path)
    assert (answers, code) == ([], 2)
    assert said in errors and "Traceback" not in errors


@pytest.mark.anyio
@requirement("start:light")
async def test_a_server_opens_when_it_is_asked_for_what_needs_it_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_opening(monkeypatch)
    gate = Gate(tmp_path)
    gate.may_open.set()
    with anyio.fail_after(60):
        async with Client(gate.server()) as client:
            assert (await client.list_tools()).tools and (await client.list_prompts()).prompts
            await client.list_resources()
            assert gate.begun == 0
            await ok(client, "list_suspensions")
            await ok(client, "list_suspensions")
    assert gate.begun == 1


@pytest.mark.anyio
@requirement("start:light")
async def test_a_server_without_requests_opens_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_service, "HEADSTART_S", 0.0)
    gate = Gate(tmp_path)
    gate.may_open.set()
    with anyio.fail_after(60):
        async with Client(gate.server()):
            await gate.has_begun.wait()


@pytest.mark.anyio
@requirement("start:light")
async def test_calls_that_come_at_once_wait_for_one_opening_while_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_opening(monkeypatch)
    gate = Gate(tmp_path)
    pages: list[dict[str, Any]] = []

    async def call(client: Client) -> None:
        pages.append(await ok(client, "list_suspensions"))

    with anyio.fail_after(60):
        async with Client(gate.server()) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(call, client)
            tasks.start_soon(call, client)
            await gate.has_begun.wait()
            assert (await client.list_tools()).tools
            assert pages == []
            gate.may_open.set()
    assert gate.begun == 1
    assert [page["suspensions"] for page in pages] == [[], []]


@pytest.mark.anyio
@requirement("start:failure")
async def test_the_error_of_a_failed_opening_answers_waiting_and_later_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_opening(monkeypatch)
    gate = Gate(tmp_path, failure=StoreError("the disk is gone"))
    told: list[str] = []

    async def call(client: Client) -> None:
        told.append((await refused(client, "list_suspensions"))["message"])

    with anyio.fail_after(60):
        async with Client(gate.server()) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, client)
                tasks.start_soon(call, client)
                await gate.has_begun.wait()
                gate.may_open.set()
            await call(client)
    assert (told, gate.begun) == (["the disk is gone"] * 3, 1)


@pytest.mark.anyio
@requirement("start:failure")
async def test_a_server_that_ends_before_it_opened_opens_nothing_and_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_opening(monkeypatch)
    gate = Gate(tmp_path)
    server = gate.server()
    with anyio.fail_after(60):
        async with Client(server) as client:
            assert (await client.list_tools()).tools
            assert not server.closed.is_set()
        await server.closed.wait()
        await checkpoint()
    assert gate.begun == 0
