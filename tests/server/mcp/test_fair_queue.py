"""When a server works on what: before its store is open, while it opens, and while several callers send."""

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.server.mcp import requests
from planwarden.server.mcp.requests import MAX_AT_ONCE, Turns
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.settings.secrets import STATE_KEY, find_request_state_key, load_request_state_key
from planwarden.storage.secret_files import SecretFiles
from tests.kit import CallerModel, Client, MemoryStore, Service, Settings, Warden, ok, refused, requirement


@dataclass
class Gate:
    """An opening that waits until it may, counts how often it began, and fails if it is to."""

    home: Path
    failure: PlanwardenError | None = None
    may_open: anyio.Event = field(default_factory=anyio.Event)
    has_begun: anyio.Event = field(default_factory=anyio.Event)
    begun: int = 0

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
    monkeypatch.setattr(requests, "HEADSTART_S", math.inf)
    with anyio.fail_after(60):
        yield Gate(tmp_path)


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

    async with Client(PlanwardenServer(gate.opening)) as client:
        assert (await client.list_tools()).tools and (await client.list_prompts()).prompts
        await client.list_resources()
        assert gate.begun == 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, client)
            tasks.start_soon(call, client)
            await gate.has_begun.wait()
            assert (await client.list_tools()).tools and answers == []
            gate.may_open.set()
        await call(client)
    assert (answers, gate.begun) == ([0 if failure is None else failure.message] * 3, 1)


@pytest.mark.parametrize("content", ["", "abc", "zz" * 32, "00" * 31, "ü"])
async def test_the_key_of_what_is_sealed_is_made_once_and_what_is_none_is_refused_and_left_alone(
    tmp_path: Path, content: str
) -> None:
    new = SecretFiles(tmp_path / "new" / "home")
    key = await load_request_state_key(new)
    assert len(key) == 32 and await load_request_state_key(new) == key
    assert oct((tmp_path / "new" / "home" / STATE_KEY).stat().st_mode)[-3:] == "600"
    (tmp_path / STATE_KEY).write_text(content)
    with pytest.raises(StoreError, match="not a planwarden key"):
        await load_request_state_key(SecretFiles(tmp_path))
    assert (tmp_path / STATE_KEY).read_text() == content
    assert await find_request_state_key(Settings(home=tmp_path), SecretFiles(tmp_path)) is None


HOURS = 36_000.0


class Floor:
    """Requests that are worked on until a test lets one end."""

    def __init__(self, tasks: TaskGroup, work_s: float = HOURS) -> None:
        self._tasks = tasks
        self._turns = Turns(work_s)
        self._ends: dict[str, anyio.CancelScope] = {}
        self.begun: list[str] = []

    async def send(self, principal: str, *names: str) -> None:
        for name in names:
            self._tasks.start_soon(self._work, principal, name)
        await self._settle()

    async def end(self, name: str) -> None:
        self._ends[name].cancel()
        await self._settle()

    async def _work(self, principal: str, name: str) -> None:
        with anyio.CancelScope() as self._ends[name]:
            async with self._turns.take(principal):
                self.begun.append(name)
                await anyio.sleep_forever()

    async def _settle(self) -> None:
        for _ in range(20):
            await checkpoint()


@requirement("mcp:turns")
async def test_a_callers_flood_waits_in_its_own_line_and_others_begin_at_once() -> None:
    async with anyio.create_task_group() as tasks:
        alone = Floor(tasks)
        await alone.send("ann", *(f"a{number}" for number in range(50)))
        assert len(alone.begun) == 50, "one caller alone is never held back"
        floor = Floor(tasks)
        await floor.send("ann", "b1")
        await floor.send("eve", *(f"e{number}" for number in range(9)))
        assert floor.begun == ["b1", *(f"e{number}" for number in range(MAX_AT_ONCE))]
        await floor.send("ann", "b2")
        assert floor.begun[-1] == "b2"
        await floor.end("e0")
        # It gave up before its turn, and its place goes on to the next.
        await floor.end("e3")
        await floor.end("e1")
        assert floor.begun[-2:] == ["e2", "e4"]
        for name in ("e2", "e4", "e5", "e6", "e7"):
            await floor.end(name)
        assert floor.begun[-1] == "e8"
        tasks.cancel_scope.cancel()


@requirement("mcp:turns")
async def test_a_request_that_waits_for_long_makes_room_for_the_callers_next() -> None:
    async with anyio.create_task_group() as tasks:
        floor = Floor(tasks, work_s=0.0)
        await floor.send("ann", "b1")
        await floor.send("eve", *(f"e{number}" for number in range(9)))
        with anyio.fail_after(5):
            while len(floor.begun) < 10:
                await checkpoint()
        tasks.cancel_scope.cancel()
