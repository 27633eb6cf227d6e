"""What a gate adds to a server: `python -m benchmarks.gate` prints it and writes results/gate.json.

* Call: a tool that only reads, called by the SDK's client through the gate and straight at the server, in turns.
* Start: from `fork` to the answer to `initialize`, in turns too, and the memory of the idle gate.
* Effect: from a decision to the moment at which the server did the call, by the clock of the machine. The host's person
  decides in a form; or a program does in another process, which the gate learns when it looks, twice a second.
* Memory: that of a gate while 100 calls wait, two for each of the 50 questions that may be open.

The store is a SQLite database on the disk where planwarden keeps its data by default.
"""

import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ElicitResult, TextContent
from platformdirs import user_cache_path

import planwarden
from benchmarks.report import about
from benchmarks.startup import ENVIRONMENT, WITH_HANDSHAKE, first_answer
from planwarden.agent.approval.answers import Decision

CALLS, STARTS, DECISIONS, HELD, QUESTIONS = 1_000, 11, 200, 100, 50
WARM = 50
SERVER = (sys.executable, "-m", "benchmarks.clock_server")
RESULT = Path(__file__).parent / "results" / "gate.json"
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
    ("effect by form", "p99_ms"): 25.0,
    ("held", "mb"): 150.0,
}
"""What each figure may be at most."""


def main() -> None:
    """Measure, print and write."""
    folder = user_cache_path("planwarden")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-") as made:
        measured = {
            "about": about(Path(made), ("mcp", "anyio")),
            "call": anyio.run(measure_calls, make_home(made, "call")),
            "start": measure_starts(make_home(made, "start")),
            "effect by form": anyio.run(measure_forms, make_home(made, "form")),
            "effect by program": anyio.run(measure_programs, make_home(made, "program")),
            "held": anyio.run(measure_memory, make_home(made, "held")),
        }
    RESULT.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    for name, row in measured.items():
        print(f"{name:>17}: {', '.join(f'{key} {value}' for key, value in row.items() if key != 'libraries')}")
    for (name, key), limit in LIMITS.items():
        verdict = "" if measured[name][key] <= limit else ", which is too much"
        print(f"{name:>17}: {key} {measured[name][key]} of {limit}{verdict}")


def make_home(folder: str, name: str) -> Path:
    home = Path(folder) / name
    home.mkdir()
    (home / "planwarden.toml").write_text(SETTINGS, encoding="utf-8")
    return home


def build_command(home: Path) -> tuple[str, ...]:
    gate = ("-m", "planwarden.server.main", "gate", "--home", str(home), "--name", "clock", "--")
    return sys.executable, *gate, *SERVER


@asynccontextmanager
async def connect(command: Sequence[str], **callbacks: Any) -> AsyncGenerator[Client]:
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]), env=ENVIRONMENT)
    async with Client(stdio_client(parameters), mode="legacy", **callbacks) as client:
        yield client


async def call(client: Client, name: str, number: int) -> int:
    """Return when the server did the call, in nanoseconds."""
    [block] = (await client.call_tool(name, {"number": number})).content
    assert isinstance(block, TextContent)
    return int(block.text)


async def measure_calls(home: Path) -> dict[str, float]:
    async with connect(SERVER) as server, connect(build_command(home)) as gate:
        seconds: list[list[float]] = [[], []]
        for number in range(WARM + CALLS):
            for client, times in zip((server, gate), seconds, strict=True):
                began = time.perf_counter()
                await call(client, "look", number)
                times.append(time.perf_counter() - began)
    straight, through = (summarise(times[WARM:]) for times in seconds)
    added = {"added_ms": round(through["p50_ms"] - straight["p50_ms"], 2)}
    return added | through | {f"straight {key}": value for key, value in straight.items()}


def measure_starts(home: Path) -> dict[str, float]:
    """The median of what the gate's answer comes later than the server's."""
    pairs = [
        [first_answer(command, {}, WITH_HANDSHAKE) for command in (SERVER, build_command(home))] for _ in range(STARTS)
    ]
    later = statistics.median(gate.first_s - server.first_s for server, gate in pairs)
    idle_mb = max(gate.idle_bytes for _, gate in pairs) / 1e6
    return {"later_ms": round(later * 1e3, 1), "idle_mb": round(idle_mb, 1)}


async def measure_forms(home: Path) -> dict[str, float]:
    decided_at: list[int] = []

    async def approve(context: Any, parameters: Any) -> ElicitResult:
        decided_at.append(time.time_ns())
        return ElicitResult(action="accept", content={"decision": "approve"})

    async with connect(build_command(home), elicitation_callback=approve) as client:
        done_at = [await call(client, "write", number) for number in range(WARM + DECISIONS)]
    return summarise([(done - decided) / 1e9 for decided, done in zip(decided_at, done_at, strict=True)][WARM:])


async def measure_programs(home: Path) -> dict[str, float]:
    seconds: list[float] = []
    async with connect(build_command(home)) as client:
        # The gate has listed its tools before the other process opens the home.
        await call(client, "look", 0)
        async with planwarden.Warden(home) as warden, anyio.create_task_group() as tasks:
            for number in range(WARM + DECISIONS):
                done_at: list[int] = []

                async def ask(number: int = number, done_at: list[int] = done_at) -> None:
                    done_at.append(await call(client, "write", number))

                tasks.start_soon(ask)
                # Another process asks.
                while not (questions := (await warden.list_suspensions()).suspensions):  # noqa: ASYNC110
                    await anyio.sleep(0.005)
                decided_at = time.time_ns()
                await warden.resume_execution(
                    questions[0].thread_id, questions[0].suspension_id, Decision(approved=True), wait_seconds=0
                )
                while not done_at:  # noqa: ASYNC110
                    await anyio.sleep(0.005)
                seconds.append((done_at[0] - decided_at) / 1e9)
    return summarise(seconds[WARM:])


async def measure_memory(home: Path) -> dict[str, float]:
    memory = 0.0
    async with connect(build_command(home)) as client, anyio.create_task_group() as tasks:
        for number in range(HELD):
            tasks.start_soon(call, client, "write", number % QUESTIONS)
        async with planwarden.Warden(home) as warden:
            while (await warden.list_suspensions(limit=1)).total < QUESTIONS:  # noqa: ASYNC110
                await anyio.sleep(0.1)
        # The last calls that share a question arrive.
        await anyio.sleep(2)
        memory = read_memory(home)
        tasks.cancel_scope.cancel()
    return {"mb": memory, "calls": HELD}


def read_memory(home: Path) -> float:
    """Return the most that the gate of the home has held, in MB."""
    for path in Path("/proc").glob("[0-9]*"):
        if path.name != str(os.getpid()) and f"\0{home}\0" in (path / "cmdline").read_text(errors="replace"):
            return round(int(re.findall(r"VmHWM:\s+(\d+) kB", (path / "status").read_text())[0]) * 1024 / 1e6, 1)
    raise RuntimeError("the gate has ended")


def summarise(seconds: list[float]) -> dict[str, float]:
    """Return milliseconds."""
    parts = statistics.quantiles(seconds, n=100)
    return {"p50_ms": round(statistics.median(seconds) * 1e3, 2), "p99_ms": round(parts[98] * 1e3, 2)}


if __name__ == "__main__":
    main()
