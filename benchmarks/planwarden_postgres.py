"""The job on planwarden with `PostgresStore`, in several processes; the variant is the role of the process.

A `front` takes commands and works on nothing: what waits there belongs to nobody until a worker takes it.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import planwarden
from benchmarks.planwarden_side import Planwarden, write_plan
from benchmarks.side import FUNCTIONS, HOLD_S, PlannedCall, report_effect
from planwarden import Decision, Warden
from planwarden.server.settings.configuration import ProcessRole
from planwarden.storage.postgres.store import PostgresStore


async def keep_busy(name: str) -> str:
    """Takes long, so that the execution belongs to its process for that time."""
    await asyncio.sleep(HOLD_S)
    return name


async def look_up(name: str) -> str:
    """Reports that it starts, and takes long. It changes nothing, so that it may be called again."""
    report_effect(name)
    await asyncio.sleep(HOLD_S)
    return name


async def act(name: str) -> str:
    """The effect after a decision."""
    report_effect(name)
    return name


class SharedPlanwarden(Planwarden):
    """One of several processes. `waits` are the tools that an execution calls while it waits for a decision."""

    def __init__(self, warden: Warden, waits: Sequence[str]) -> None:
        super().__init__(warden)
        self._waits = waits

    async def wait(self, name: str) -> str:
        calls = [PlannedCall(tool, "Work", {"name": name}) for tool in self._waits]
        started = await self.warden.execute_plan(write_plan(calls, dependencies=[]), wait_seconds=0)
        while not started.suspensions:
            await asyncio.sleep(0.005)
            started = await self.warden.get_execution(started.thread_id)
        return f"{started.thread_id} {started.suspensions[0].suspension_id}"

    async def decide(self, waiting: str) -> None:
        thread_id, suspension_id = waiting.split()
        await self.warden.resume_execution(thread_id, suspension_id, Decision(approved=True), wait_seconds=0)

    async def hold(self, name: str) -> None:
        await self.warden.execute_plan(write_plan([PlannedCall("look_up", "Work", {"name": name})]), wait_seconds=0)


@asynccontextmanager
async def open_side(role: ProcessRole, url: str) -> AsyncGenerator[SharedPlanwarden]:
    """Open an engine on the database, with the same tools as every other process."""
    effect = planwarden.tool(risk="read", effect="effect")
    read = planwarden.tool(risk="read", effect="read")
    confirmed = planwarden.tool(risk="confirm", effect="effect")
    tools = [*map(effect, FUNCTIONS), *map(read, (keep_busy, look_up)), confirmed(act)]
    store = PostgresStore.open(url)
    with tempfile.TemporaryDirectory(prefix="planwarden-") as home:
        try:
            async with Warden(home=Path(home), tools=tools, store=store, role=role) as warden:
                yield SharedPlanwarden(warden, ["act"] if role == "front" else ["keep_busy", "act"])
        finally:
            await store.close()
