"""Whose request is worked on next, while several callers send."""

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.server.mcp.turns import MAX_AT_ONCE, Turns
from tests.kit import Ledger, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio

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
async def test_one_caller_alone_is_never_held_back() -> None:
    async with anyio.create_task_group() as tasks:
        floor = Floor(tasks)
        await floor.send("ann", *(f"a{number}" for number in range(50)))
        assert len(floor.begun) == 50
        tasks.cancel_scope.cancel()


@requirement("mcp:turns")
async def test_a_callers_flood_waits_in_its_own_line_and_others_begin_at_once() -> None:
    async with anyio.create_task_group() as tasks:
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


@requirement("mcp:bounded-answers")
async def test_while_a_large_plan_is_checked_other_requests_are_answered() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    zeros: list[JsonValue] = [0] * 1_000
    steps = [tool_step(f"s{number}", "find", {"topic": [zeros]}) for number in range(45)]
    async with warden(Ledger()) as w, anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        with pytest.raises(InvalidPlan):
            await w.execute_plan(plan(*steps))
        tasks.cancel_scope.cancel()
    # On the loop there would be none; a thread hands over every few milliseconds, more or less by version.
    assert turns > 5
