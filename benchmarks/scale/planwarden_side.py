"""The job on planwarden with `PostgresStore`, through the public Python API."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import planwarden
from benchmarks.planwarden_side import run_one
from benchmarks.scale.side import HOLD_S, ScaleSide, report_effect, run_closed
from benchmarks.workload import FUNCTIONS
from planwarden import Decision, Warden
from planwarden.agent.common.struct import JsonValue
from planwarden.server.settings.configuration import ProcessRole
from planwarden.storage.postgres.store import PostgresStore


async def keep_busy(name: str) -> dict[str, JsonValue]:
    """Takes long, so that the execution belongs to its process for that time."""
    await asyncio.sleep(HOLD_S)
    return {"name": name}


async def look_up(name: str) -> dict[str, JsonValue]:
    """Reports that it starts, and takes long. It changes nothing, so that it may be called again."""
    report_effect(name)
    await asyncio.sleep(HOLD_S)
    return {"name": name}


async def act(name: str) -> dict[str, JsonValue]:
    """The effect after a decision."""
    report_effect(name)
    return {"name": name}


class Planwarden:
    """Implements `ScaleSide`."""

    def __init__(self, warden: Warden) -> None:
        self.warden = warden

    async def run(self, seconds: float, at_once: int) -> int:
        return await run_closed(lambda: run_one(self.warden), seconds, at_once)

    async def wait(self, name: str) -> str:
        plan: dict[str, JsonValue] = {
            "todoList": [
                {"id": "s1", "description": "Keep busy", "toolCalls": [make_call("keep_busy", name)]},
                {"id": "s2", "description": "Act", "toolCalls": [make_call("act", name)], "dependencies": []},
            ]
        }
        return await ask(self.warden, plan)

    async def decide(self, waiting: str) -> None:
        thread_id, suspension_id = waiting.split()
        await self.warden.resume_execution(thread_id, suspension_id, Decision(approved=True), wait_seconds=0)

    async def hold(self, name: str) -> None:
        plan: dict[str, JsonValue] = {
            "todoList": [{"id": "s1", "description": "Look up", "toolCalls": [make_call("look_up", name)]}]
        }
        await self.warden.execute_plan(plan, wait_seconds=0)


async def ask(warden: Warden, plan: dict[str, JsonValue]) -> str:
    """Starts the plan; returns the thread and the suspension, once some process has asked the question."""
    started = await warden.execute_plan(plan, wait_seconds=0)
    while not started.suspensions:
        await asyncio.sleep(0.005)
        started = await warden.get_execution(started.thread_id)
    return f"{started.thread_id} {started.suspensions[0].suspension_id}"


def make_call(tool: str, name: str) -> dict[str, JsonValue]:
    return {"toolName": tool, "arguments": {"name": name}}


@asynccontextmanager
async def open_warden(url: str, role: ProcessRole) -> AsyncGenerator[Warden]:
    """An engine on the database, with the same tools as every other process."""
    effect = planwarden.tool(risk="read", effect="effect")
    read = planwarden.tool(risk="read", effect="read")
    confirmed = planwarden.tool(risk="confirm", effect="effect")
    tools = [*map(effect, FUNCTIONS), *map(read, (keep_busy, look_up)), confirmed(act)]
    store = PostgresStore.open(url)
    with tempfile.TemporaryDirectory(prefix="planwarden-") as home:
        try:
            async with Warden(home=Path(home), tools=tools, store=store, role=role) as warden:
                yield warden
        finally:
            await store.close()


@asynccontextmanager
async def open_side(url: str) -> AsyncGenerator[ScaleSide]:
    """A process that takes commands and works."""
    async with open_warden(url, "both") as warden:
        yield Planwarden(warden)
