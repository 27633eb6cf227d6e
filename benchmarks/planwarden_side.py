"""The job on planwarden, through its public Python API: `execute_plan` up to the question, `resume_execution` after it.

`python -m benchmarks.planwarden_side HOME THREAD SUSPENSION` answers one question, runs the rest, and prints which
large libraries it has imported.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import planwarden
from benchmarks.side import FUNCTIONS, PlannedCall, Side, make_order, plan_job
from planwarden import Decision, Warden

DATABASE = "planwarden.db"
WAIT_S = 60.0


def write_plan(calls: Iterable[PlannedCall], **keys: Any) -> dict[str, Any]:
    """Return a plan with a step for each call."""
    return {
        "todoList": [
            {
                "id": f"s{number}",
                "description": call.description,
                "toolCalls": [{"toolName": call.tool, "arguments": call.arguments}],
                **keys,
            }
            for number, call in enumerate(calls, 1)
        ]
    }


def make_warden(home: Path) -> Warden:
    """Return planwarden as a program embeds it. Nobody has to approve the tools themselves; only step 3 asks."""
    return Warden(home=home, tools=list(map(planwarden.tool(risk="read", effect="effect"), FUNCTIONS)))


class Planwarden(Side):
    """An open `Warden`."""

    def __init__(self, warden: Warden) -> None:
        self.warden = warden

    async def suspend_one(self) -> tuple[str, str]:
        waiting = await self.warden.execute_plan(write_plan(plan_job(make_order())), wait_seconds=WAIT_S)
        if waiting.status != "suspended":
            raise RuntimeError(f"the plan did not wait for the person: {waiting.status} {waiting.error}")
        return waiting.thread_id, waiting.suspensions[0].suspension_id

    async def resume_one(self, thread_id: str, suspension_id: str) -> None:
        """Answer the question and run the rest."""
        yes = Decision(approved=True)
        done = await self.warden.resume_execution(thread_id, suspension_id, yes, wait_seconds=WAIT_S)
        if done.status != "completed":
            raise RuntimeError(f"the plan did not complete: {done.status} {done.error}")

    async def run_one(self) -> None:
        await self.resume_one(*await self.suspend_one())


@asynccontextmanager
async def open_side(variant: str, folder: str) -> AsyncGenerator[Planwarden]:
    """Open planwarden in a folder; the `home` says itself which tools there are."""
    async with Warden(home=Path(folder)) if variant == "home" else make_warden(Path(folder)) as warden:
        yield Planwarden(warden)


async def resume_cold(home: str, thread_id: str, suspension_id: str) -> None:
    """Approve and finish one execution, as all that this process does."""
    async with make_warden(Path(home)) as warden:
        await Planwarden(warden).resume_one(thread_id, suspension_id)
    print(json.dumps(sorted({"mcp", "mcp_types", "pydantic_ai", "langgraph"} & sys.modules.keys())))


if __name__ == "__main__":
    asyncio.run(resume_cold(*sys.argv[1:4]))
