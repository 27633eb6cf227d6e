"""What a loop costs beside as many steps: `python -m benchmarks.loops` prints commits and CPU for each of 1,000 calls.

A loop runs one call after the other, as the steps do, or 32 at once. The sides take turns. The tool returns at once and
is counted in.
"""

import asyncio
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from pydantic import JsonValue

import planwarden
from benchmarks.planwarden_side import DATABASE
from planwarden import Warden

CALLS, ROUNDS = 1_000, 5
WAIT_S = 300.0
SIDES = {"loop": 1, "loop, 32 at once": 32, "steps": 1}
"""And the calls that each makes at a time."""


@planwarden.tool(risk="read", effect="effect")
async def note(number: int) -> int:
    """Note a number."""
    return number


def make_plan(side: str) -> dict[str, JsonValue]:
    """Returns a plan of `CALLS` calls: of one step for a list, or of as many steps in a chain."""
    if side == "steps":
        calls: list[JsonValue] = [{"toolName": "note", "arguments": {"number": number}} for number in range(CALLS)]
        steps = [{"id": f"s{n}", "description": "Note", "toolCalls": [call]} for n, call in enumerate(calls)]
        return {"todoList": steps}
    call = {"toolName": "note", "arguments": {"number": {"$from": "item"}}}
    loop = {"forEach": list(range(CALLS)), "maxItems": CALLS, "maxConcurrent": SIDES[side]}
    return {"todoList": [{"id": "all", "description": "Note", **loop, "toolCalls": [call]}]}


def make_home(folder: Path) -> Path:
    """Makes a home that allows as many steps, and returns its folder."""
    folder.mkdir(mode=0o700)
    (folder / "planwarden.toml").write_text(f"[execution]\nmaxSteps = {CALLS}\n", encoding="utf-8")
    return folder


async def measure(side: str, folder: Path) -> tuple[float, float]:
    """Returns commits and milliseconds of CPU for each call."""
    async with Warden(home=folder, tools=[note]) as opened:
        start = time.process_time()
        done = await opened.execute_plan(make_plan(side), wait_seconds=WAIT_S)
        spent_ms = (time.process_time() - start) * 1000
        if done.status != "completed":
            raise RuntimeError(f"the plan did not complete: {done.status} {done.error}")
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        # A row of events is one transaction.
        return connection.execute("SELECT count(*) FROM events").fetchone()[0] / CALLS, spent_ms / CALLS


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        found = {side: list[tuple[float, float]]() for side in SIDES}
        for turn in range(ROUNDS):
            for side in SIDES:
                found[side].append(await measure(side, make_home(Path(folder) / f"{side}-{turn}")))
    for side in SIDES:
        commits, cpu = (statistics.median(column) for column in zip(*found[side], strict=True))
        print(f"{side:16} {commits:.2f} commits and {cpu:.2f} ms of CPU a call")


if __name__ == "__main__":
    asyncio.run(main())
