"""What a gate adds to a server: `python -m benchmarks.gate` prints it and writes results/gate.json.

* Call: a tool that only reads, called by the SDK's client through the gate and straight at the server, in turns.
* Start: from `fork` to the answer to `initialize`, in turns too, and the memory of the idle gate.
* Effect: from a person's answer to the host's form to the moment at which the server did the call, by the clock of the
  machine.
* Memory: that of a gate while 100 calls wait, two for each of the 50 questions that may be open.

The store is a SQLite database on the disk where planwarden keeps its data by default.
"""

import os
import statistics
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.types import ElicitResult, TextContent

import planwarden
from benchmarks.child import read_memory
from benchmarks.harness import describe_machine, make_folder, write_result
from benchmarks.startup import ENVIRONMENT, PROGRAM, connect, measure_server

CALLS, STARTS, DECISIONS, HELD, QUESTIONS = 1_000, 11, 200, 100, 50
WARM = 50
SERVER = (sys.executable, "-m", "benchmarks.clock_server")
SETTINGS = """
[gate]
hold_s = 900
[approvals]
open_inbox = "never"
[tools.clock_look]
risk = "read"
effect = "read"
[tools.clock_write]
risk = "confirm"
"""
LIMITS = {
    ("call", "added_ms"): 2.0,
    ("start", "later_ms"): 300.0,
    ("start", "idle_mb"): 70.0,
    ("effect", "p99_ms"): 25.0,
    ("held", "mb"): 150.0,
}
"""What each figure may be at most."""


def main() -> None:
    """Measure, print and write."""
    with make_folder() as folder:
        result: dict[str, Any] = {"about": describe_machine(folder, "mcp", "anyio")}
        for name, measure in MEASURES.items():
            home = folder / name.replace(" ", "-")
            home.mkdir()
            (home / "planwarden.toml").write_text(SETTINGS, encoding="utf-8")
            result[name] = anyio.run(measure, home)
    write_result("gate", result)
    for name, row in result.items():
        print(f"{name:>6}: {', '.join(f'{key} {value}' for key, value in row.items() if key != 'libraries')}")
    for (name, key), limit in LIMITS.items():
        verdict = "" if result[name][key] <= limit else ", which is too much"
        print(f"{name:>6}: {key} {result[name][key]} of {limit}{verdict}")


def build_command(home: Path) -> tuple[str, ...]:
    """Return the command of a gate before the server."""
    return *PROGRAM, "gate", "--home", str(home), "--name", "clock", "--", *SERVER


def open_gate(home: Path, **callbacks: Any) -> AbstractAsyncContextManager[Client]:
    """Open a client of a new gate."""
    return connect(build_command(home), ENVIRONMENT, mode="legacy", **callbacks)


async def call(client: Client, name: str, number: int) -> int:
    """Return when the server did the call, in nanoseconds."""
    [block] = (await client.call_tool(name, {"number": number})).content
    assert isinstance(block, TextContent)
    return int(block.text)


async def measure_calls(home: Path) -> dict[str, float]:
    """Return milliseconds of a call, through the gate and straight."""
    async with connect(SERVER, ENVIRONMENT, mode="legacy") as server, open_gate(home) as gate:
        seconds: list[list[float]] = [[], []]
        for number in range(WARM + CALLS):
            for client, times in zip((server, gate), seconds, strict=True):
                began = time.perf_counter()
                await call(client, "look", number)
                times.append(time.perf_counter() - began)
    straight, through = map(summarise, seconds)
    added = {"added_ms": round(through["p50_ms"] - straight["p50_ms"], 2)}
    return added | through | {f"straight {key}": value for key, value in straight.items()}


async def measure_starts(home: Path) -> dict[str, float]:
    """Return the median of what the gate's answer comes later than the server's."""
    pairs = [[await measure_server(command) for command in (SERVER, build_command(home))] for _ in range(STARTS)]
    later_s = statistics.median(gate["first"] - server["first"] for server, gate in pairs)
    idle_mb = max(gate["idle_bytes"] for _, gate in pairs) / 1e6
    return {"later_ms": round(later_s * 1e3, 1), "idle_mb": round(idle_mb, 1)}


async def measure_forms(home: Path) -> dict[str, float]:
    """Return milliseconds from the host's answer to the call."""
    decided_at: list[int] = []

    async def approve(context: Any, parameters: Any) -> ElicitResult:
        decided_at.append(time.time_ns())
        return ElicitResult(action="accept", content={"decision": "approve"})

    async with open_gate(home, elicitation_callback=approve) as client:
        done_at = [await call(client, "write", number) for number in range(WARM + DECISIONS)]
    return summarise([(done - decided) / 1e9 for decided, done in zip(decided_at, done_at, strict=True)])


async def measure_memory(home: Path) -> dict[str, float]:
    """Return the most that a gate has held, while calls wait."""
    memory = 0
    async with open_gate(home) as client, anyio.create_task_group() as tasks:
        for number in range(HELD):
            tasks.start_soon(call, client, "write", number % QUESTIONS)
        async with planwarden.Warden(home) as warden:
            while (await warden.list_suspensions(limit=1)).total < QUESTIONS:  # noqa: ASYNC110
                await anyio.sleep(0.1)
        # The last calls that share a question arrive.
        await anyio.sleep(2)
        [memory] = [read_memory(process, "VmHWM") for process in os.listdir("/proc") if is_gate(process, home)]
        tasks.cancel_scope.cancel()
    return {"mb": round(memory / 1e6, 1), "calls": HELD}


def is_gate(process: str, home: Path) -> bool:
    """Return whether the process is the gate of the home."""
    return process.isdigit() and f"\0{home}\0" in Path("/proc", process, "cmdline").read_text(errors="replace")


def summarise(seconds: list[float]) -> dict[str, float]:
    """Return milliseconds, without those of the first calls."""
    parts = statistics.quantiles(seconds[WARM:], n=100)
    return {"p50_ms": round(statistics.median(seconds[WARM:]) * 1e3, 2), "p99_ms": round(parts[98] * 1e3, 2)}


MEASURES = {
    "call": measure_calls,
    "start": measure_starts,
    "effect": measure_forms,
    "held": measure_memory,
}


if __name__ == "__main__":
    main()
