"""The job on planwarden, through its public Python API: `execute_plan` up to the question, `resume_execution` after it.

Run as `python -m benchmarks.planwarden_side FOLDER`, it prints what planwarden logs for one execution.
"""

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import planwarden
from benchmarks.side import Executions, Side
from benchmarks.workload import FUNCTIONS, make_order, plan_job
from planwarden import Decision, Warden
from planwarden.agent.common.struct import JsonValue

DATABASE = "planwarden.db"
WAIT_S = 60.0


def make_plan() -> dict[str, JsonValue]:
    """Returns the plan of a new order."""
    return {
        "todoList": [
            {
                "id": f"s{number}",
                "description": call.description,
                "toolCalls": [{"toolName": call.tool, "arguments": call.arguments}],
            }
            for number, call in enumerate(plan_job(make_order()), 1)
        ]
    }


def warden(home: Path) -> Warden:
    """planwarden as a program embeds it. Nobody has to approve the tools themselves; only step 3 asks."""
    mark = planwarden.tool(risk="read", effect="effect")
    return Warden(home=home, tools=[mark(function) for function in FUNCTIONS])


async def suspend_one(opened: Warden) -> tuple[str, str]:
    """Runs the first two steps of a new execution and stops at the question; returns thread and suspension id."""
    waiting = await opened.execute_plan(make_plan(), wait_seconds=WAIT_S)
    if waiting.status != "suspended":
        raise RuntimeError(f"the plan did not wait for the person: {waiting.status} {waiting.error}")
    return waiting.thread_id, waiting.suspensions[0].suspension_id


async def resume_one(opened: Warden, thread_id: str, suspension_id: str) -> None:
    """Answer the question and run the rest."""
    done = await opened.resume_execution(thread_id, suspension_id, Decision(approved=True), wait_seconds=WAIT_S)
    if done.status != "completed":
        raise RuntimeError(f"the plan did not complete: {done.status} {done.error}")


async def run_one(opened: Warden) -> None:
    """One whole execution."""
    await resume_one(opened, *await suspend_one(opened))


async def log_of_one(home: Path) -> list[str]:
    """What planwarden logs for one execution: the body of each of its transactions, in order."""
    async with warden(home) as opened:
        await run_one(opened)
    with closing(sqlite3.connect(home / DATABASE)) as connection:
        return [str(row[0]) for row in connection.execute("SELECT body FROM events ORDER BY position")]


@asynccontextmanager
async def open_side(name: str, folder: Path) -> AsyncGenerator[Side]:
    """planwarden in `folder`."""
    async with warden(folder) as opened:
        yield Executions(lambda: run_one(opened), lambda: suspend_one(opened))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(log_of_one(Path(sys.argv[1])))))
