"""How long a person waits for a process that has just been started.

* Cold resume: a fresh process answers one of many suspended executions and runs the rest. From start to exit.
* First answer: an MCP server over standard input and output, from its start to the answers to `initialize` and
  `tools/list`, beside an empty server made with the same SDK.
* Commands: `list`, `show` and `approve` as a person runs them, on a home with a hundred open questions. They get a
  terminal, on which `y` is typed as soon as a question appears.

The operating system has the files in its cache, as it has on every start but the first of the day.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.server.cli.support import command_line, run_on_terminal

from benchmarks.child import read_memory
from benchmarks.harness import Child

SETTLE_S = 1.0
STARTS = 9
WAITING = 100
Mode = Literal["legacy", "auto"]
VERSIONS: dict[str, Mode] = {"2025-11-25": "legacy", "2026-07-28": "auto"}
"""Of the protocol, with the client's mode: the last one with a handshake, and the first one without."""

PROGRAM = (sys.executable, "-m", "planwarden.server.main")
EMPTY = (sys.executable, "-c", 'from mcp.server import MCPServer; MCPServer("empty").run("stdio")')
"""Shows what every server made with this SDK imports before it can answer."""

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Of started processes: an installed package has its bytecode, so all but the first start have to find it, too."""

TOOLS = """
import planwarden
from benchmarks.side import FUNCTIONS

mark = planwarden.tool(risk="read", effect="effect")
globals().update({function.__name__: mark(function) for function in FUNCTIONS})
"""


@asynccontextmanager
async def connect(command: Sequence[str], environment: dict[str, str], **options: Any) -> AsyncGenerator[Client]:
    """Open a client of a new process, as a host starts it."""
    server = StdioServerParameters(command=command[0], args=list(command[1:]), env=environment)
    async with Client(stdio_client(server), **options) as client:
        yield client


async def measure_server(command: Sequence[str], mode: Mode = "legacy", **environment: str) -> dict[str, float]:
    """Return seconds from the start to the first answer and to that of `tools/list`, and bytes held a second later."""
    began, others = time.perf_counter(), set(list_children())
    async with connect(command, {**ENVIRONMENT, **environment}, mode=mode) as client:
        first_s = time.perf_counter() - began
        await client.list_tools()
        tools_s = time.perf_counter() - began
        await anyio.sleep(SETTLE_S)
        [server] = set(list_children()) - others
        return {"first": first_s, "tools_list": tools_s, "idle_bytes": read_memory(server, "VmRSS")}


def list_children() -> list[str]:
    """Return the processes that this one has started and that still run, on Linux."""
    return [child for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()]


async def measure_first_answers(home: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return what `measure_server` does, by version of the protocol and server."""
    servers = {"planwarden": (*PROGRAM, "serve"), "empty": EMPTY}
    samples: dict[str, Any] = {version: {name: {} for name in servers} for version in VERSIONS}
    for turn in range(STARTS + 1):
        for version, mode in VERSIONS.items():
            for name, command in servers.items():
                for key, value in (await measure_server(command, mode, PLANWARDEN_HOME=str(home))).items():
                    # The first start of each compiles what was not compiled and creates the database.
                    samples[version][name].setdefault(key, []).extend([value] if turn else [])
    return samples


def measure_cold_resume(home: Path, waiting: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return seconds of a process that resumes one of many executions, and of Python alone."""
    # The disk still writes what was made for the figures before.
    os.sync()
    seconds: dict[str, list[float]] = {"seconds": [], "interpreter": []}
    imported = ""
    for ids in waiting[:STARTS]:
        for key, words in (("interpreter", ("-c", "")), ("seconds", ("-m", "benchmarks.planwarden_side", home, *ids))):
            began = time.perf_counter()
            output = subprocess.run(
                [sys.executable, *words], check=True, stdout=subprocess.PIPE, env=ENVIRONMENT
            ).stdout
            seconds[key].append(time.perf_counter() - began)
            imported = output or imported
    return {**seconds, "imported": json.loads(imported)}


def measure_commands(home: Path) -> Mapping[str, list[float]]:
    """Return seconds from start to exit of each command, without the first of each, which finds no bytecode."""
    home.mkdir(mode=0o700, parents=True)
    (home / "tools.py").write_text(TOOLS, encoding="utf-8")
    (home / "planwarden.toml").write_text('[tools]\npython = ["tools.py"]\n', encoding="utf-8")
    with Child("planwarden_side", "home", home) as child:
        waiting = child.call("suspend", count=WAITING)["value"]
    os.sync()
    seconds: dict[str, list[float]] = {"list": [], "show": [], "approve": []}
    for turn, (thread_id, suspension_id) in enumerate(waiting[: STARTS + 1]):
        for name, words in {"list": (), "show": (thread_id,), "approve": (suspension_id,)}.items():
            taken = _run_on_terminal("--home", str(home), name, *words)
            seconds[name] += [taken] if turn else []
    return seconds


def _run_on_terminal(*words: str) -> float:
    began = time.perf_counter()
    terminal = run_on_terminal(command_line(*words))
    try:
        if "approve" in words:
            terminal.expect("Enter leaves it open]")
            terminal.type("y")
        if code := terminal.finish():
            raise RuntimeError(f"{words} ended with {code}: {terminal.text[-500:]}")
        return time.perf_counter() - began
    finally:
        terminal.close()
