"""A server answers before its store is open, opens it once when it is needed, and has one key for what it seals."""

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.agent.models.caller import CallerModel
from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.mcp import lazy_service
from planwarden.server.mcp.server import PlanwardenServer, build_server
from planwarden.server.mcp.state_key import NAME, find_request_state_key, load_request_state_key
from planwarden.storage.secret_files import SecretFiles
from tests.kit import Client, MemoryStore, Settings, ok, refused, requirement

pytestmark = pytest.mark.anyio


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


@pytest.fixture
async def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Gate]:
    """Only a request makes the server open."""
    monkeypatch.setattr(lazy_service, "HEADSTART_S", math.inf)
    with anyio.fail_after(60):
        yield Gate(tmp_path)


@requirement("start:light")
async def test_a_server_opens_once_when_it_is_asked_for_what_needs_it_and_not_before(gate: Gate) -> None:
    gate.may_open.set()
    async with Client(gate.server()) as client:
        assert (await client.list_tools()).tools and (await client.list_prompts()).prompts
        await client.list_resources()
        assert gate.begun == 0
        await ok(client, "list_suspensions")
        await ok(client, "list_suspensions")
    assert gate.begun == 1


@requirement("start:light")
async def test_a_server_without_requests_opens_by_itself(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_service, "HEADSTART_S", 0.0)
    gate.may_open.set()
    async with Client(gate.server()):
        await gate.has_begun.wait()


@requirement("start:light", "start:failure")
@pytest.mark.parametrize("failure", [None, StoreError("the disk is gone")], ids=["opens", "fails"])
async def test_calls_that_come_at_once_wait_for_one_opening_and_share_its_end_while_others_are_answered(
    gate: Gate, failure: StoreError | None
) -> None:
    gate.failure = failure
    answers: list[Any] = []

    async def call(client: Client) -> None:
        if failure is None:
            answers.append((await ok(client, "list_suspensions"))["total"])
        else:
            answers.append((await refused(client, "list_suspensions"))["message"])

    async with Client(gate.server()) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, client)
            tasks.start_soon(call, client)
            await gate.has_begun.wait()
            assert (await client.list_tools()).tools and answers == []
            gate.may_open.set()
        await call(client)
    assert (answers, gate.begun) == ([0 if failure is None else failure.message] * 3, 1)


@requirement("start:failure")
async def test_a_server_that_ends_before_it_opened_opens_nothing_and_is_closed(gate: Gate) -> None:
    server = gate.server()
    async with Client(server) as client:
        assert (await client.list_tools()).tools
        assert not server.closed.is_set()
    await server.closed.wait()
    await checkpoint()
    assert gate.begun == 0


async def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    key = await load_request_state_key(SecretFiles(home))
    assert len(key) == 32 and await load_request_state_key(SecretFiles(home)) == key
    assert oct((home / NAME).stat().st_mode)[-3:] == "600" and oct(home.stat().st_mode)[-3:] == "700"
    assert [path.name for path in home.iterdir()] == [NAME]


async def test_the_first_process_makes_the_key_for_all(tmp_path: Path) -> None:
    keys: list[bytes] = []

    async def ask() -> None:
        keys.append(await load_request_state_key(SecretFiles(tmp_path)))

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            # Each file is written on a thread of its own.
            tasks.start_soon(ask)
    assert len(keys) == 16 and len(set(keys)) == 1


@pytest.mark.parametrize("content", ["", "abc", "zz" * 32, "00" * 31, "ü"])
async def test_what_is_not_a_key_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(StoreError, match="not a key"):
        await load_request_state_key(SecretFiles(tmp_path))
    assert (tmp_path / NAME).read_text() == content
    assert await find_request_state_key(Settings(home=tmp_path), SecretFiles(tmp_path)) is None
