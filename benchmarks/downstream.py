"""What 200 tools of 5 downstream MCP servers cost: the start, a search, a call, and memory when a server misbehaves.

* Start: from `fork` to the answers to `initialize` and to the first `search_tools`, once with the servers configured
  and listed before (so that none is started), and once with none. Both take turns.
* Search: `search_tools` in process over the 200 tools, cold index included.
* Call: the same tool of the same kind of server, once through the SDK's client, once through the catalogue in process,
  once as a step of a plan on SQLite with every event committed, and such a step with a built-in tool. All take turns.
* Memory: the most that a process held after a server answered with 200 MB, listed 20,000 tools, or sent too
  many messages.

Run as `python -m benchmarks.downstream`; writes `benchmarks/results/downstream.json`.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
from pydantic import JsonValue
from tests.support.paths import DOUBLES

import planwarden
from benchmarks.catalogue import catalogue
from benchmarks.startup import SERVER_COMMAND
from planwarden.agent.core.tool import CallContext
from planwarden.server.settings.configuration import load_settings
from planwarden.storage.sqlite.memory import MemoryStore

SERVERS, TOOLS = 5, 40
STARTS, SEARCHES, ROUNDS, CALLS = 15, 400, 30, 20
DOUBLE = DOUBLES / "hostile_server.py"
RESULTS = Path(__file__).parent / "results" / "downstream.json"
QUERIES = ("create an invoice", "delete old contacts", "ticket reply", "restart the build", "export employees", "echo")


def main() -> None:
    """Measure everything and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "many"
        configure(home, {f"s{number}": ("good", tools(number)) for number in range(SERVERS)})
        empty = Path(folder) / "none"
        empty.mkdir()
        anyio.run(listed, home)
        found: dict[str, Any] = {
            "about": about(),
            "start": starts(home, empty),
            "search": anyio.run(searches, home),
            "call": anyio.run(calls, home),
            "memory": {manner: memory(Path(folder), manner) for manner in ("good", "huge", "several", "storm")},
        }
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


def about() -> dict[str, JsonValue]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    return {
        "commit": commit.strip(),
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "servers": SERVERS,
        "tools": SERVERS * TOOLS,
    }


def tools(number: int) -> list[JsonValue]:
    """Returns the entries of one server's listing: real-looking ones, and `echo`."""
    made = catalogue(SERVERS * (TOOLS - 1))[number::SERVERS]
    echo: JsonValue = {
        "name": "echo",
        "description": "Say it again.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "outputSchema": {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]},
        "annotations": {"readOnlyHint": True},
    }
    others: list[JsonValue] = [
        {"name": d.name, "description": d.description, "inputSchema": d.input_schema}
        for d in (tool.definition for tool in made)
    ]
    return [*others, echo]


def configure(home: Path, servers: dict[str, tuple[str, list[JsonValue]]]) -> None:
    """Makes a home with these servers, all trusted."""
    home.mkdir()
    entries: dict[str, JsonValue] = {}
    for name, (manner, offered) in servers.items():
        place = home / f"double-{name}"
        place.mkdir()
        if offered:
            (place / "tools.json").write_text(json.dumps(offered), encoding="utf-8")
        entries[name] = {"command": sys.executable, "args": [str(DOUBLE), manner, str(place)]}
    (home / "planwarden.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    trusted = "".join(f"[servers.{name}]\ntrusted = true\n" for name in servers)
    (home / "planwarden.toml").write_text(trusted, encoding="utf-8")


async def listed(home: Path) -> None:
    """Start every server once, so that its listing is known from then on."""
    async with opened(home, MemoryStore()) as warden:
        await warden.search_tools()


def opened(home: Path, store: MemoryStore | None = None) -> planwarden.Warden:
    return planwarden.Warden(settings=load_settings(home=home, environment={}), store=store)


def starts(home: Path, empty: Path) -> dict[str, JsonValue]:
    taken: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    for turn in range(STARTS + 1):
        for name, place in (("with", home), ("without", empty)):
            answer = first_answers(place)
            if turn:
                taken[name].append(answer)
    found: dict[str, JsonValue] = {}
    for place, what in enumerate(("initialize", "search_tools")):
        medians = {name: statistics.median(times[place] for times in answers) for name, answers in taken.items()}
        found[what] = {
            "with_200_tools_ms": ms(medians["with"]),
            "without_ms": ms(medians["without"]),
            "ratio": round(medians["with"] / medians["without"], 3),
        }
    return found


def first_answers(home: Path) -> tuple[float, float]:
    """Returns the seconds from the start of `planwarden serve` to the answers to `initialize` and to a search."""
    start = time.perf_counter()
    with subprocess.Popen(
        SERVER_COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PLANWARDEN_HOME": str(home)},
    ) as process:
        client: JsonValue = {"name": "benchmark", "version": "1"}
        hello: JsonValue = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        ask(process, 1, "initialize", hello)
        initialized = time.perf_counter() - start
        assert process.stdin is not None
        process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        ask(process, 2, "tools/call", {"name": "search_tools", "arguments": {"query": "invoice"}})
        searched = time.perf_counter() - start
        process.stdin.close()
        process.wait(30)
    return initialized, searched


def ask(process: "subprocess.Popen[str]", request_id: int, method: str, params: JsonValue) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        message = json.loads(line)
        if message.get("id") == request_id:
            assert "result" in message, message
            return
    raise RuntimeError("the server ended before it answered")


async def searches(home: Path) -> dict[str, JsonValue]:
    async with opened(home, MemoryStore()) as warden:
        times: list[float] = []
        for turn in range(SEARCHES):
            start = time.perf_counter()
            await warden.search_tools(QUERIES[turn % len(QUERIES)], limit=20)
            times.append(time.perf_counter() - start)
    ordered = sorted(times)
    return {
        "first_ms": ms(times[0]),
        "median_ms": ms(statistics.median(times)),
        "p95_ms": ms(ordered[int(len(ordered) * 0.95)]),
    }


async def calls(home: Path) -> dict[str, JsonValue]:
    from mcp import Client, StdioServerParameters

    args = [str(DOUBLE), "good", str(home / "double-s0")]
    direct: list[float] = []
    through: list[float] = []
    planned: list[float] = []
    local: list[float] = []
    async with opened(home) as warden, Client(StdioServerParameters(command=sys.executable, args=args)) as client:
        await client.list_tools()
        context = CallContext(execution_id="e", step_id="s", call_id="s:1", idempotency_key="e:s:1")
        for turn in range(ROUNDS + 1):
            took = (
                await direct_calls(client),
                await registry_calls(warden, context),
                await planned_calls(warden, "s0_echo", {"text": "x"}),
                await planned_calls(warden, "calculator", {"expression": "1+1"}),
            )
            if turn:
                for times, seconds in zip((direct, through, planned, local), took, strict=True):
                    times.append(seconds / CALLS)
    medians = [statistics.median(times) for times in (direct, through, planned, local)]
    return {
        "sdk_client_ms": ms(medians[0]),
        "in_process_ms": ms(medians[1]),
        "in_process_overhead_ms": ms(medians[1] - medians[0]),
        "as_plan_step_ms": ms(medians[2]),
        "as_plan_step_overhead_ms": ms(medians[2] - medians[0]),
        "plan_step_of_a_built_in_tool_ms": ms(medians[3]),
    }


async def direct_calls(client: Any) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        result = await client.call_tool("echo", {"text": "x"})
        assert not result.is_error
    return time.perf_counter() - start


async def registry_calls(warden: planwarden.Warden, context: CallContext) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        assert await warden.tools.call("s0_echo", {"text": "x"}, context) == {"said": "x"}
    return time.perf_counter() - start


async def planned_calls(warden: planwarden.Warden, tool: str, arguments: dict[str, JsonValue]) -> float:
    """Times one plan of this many steps, its creation and its end included."""
    call: JsonValue = {"toolName": tool, "arguments": arguments}
    steps: list[JsonValue] = [
        {"id": f"step_{n}", "description": "call it", "requiredTools": [tool], "toolCalls": [call]}
        for n in range(CALLS)
    ]
    start = time.perf_counter()
    execution = await warden.execute_plan({"todoList": steps}, wait_seconds=60)
    assert execution.status == "completed", execution.error
    return time.perf_counter() - start


def memory(folder: Path, manner: str) -> dict[str, JsonValue]:
    """Returns the most memory that a process of its own held, with a server of this manner and one call."""
    home = folder / f"memory-{manner}"
    configure(home, {"bad": (manner, [])})
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.downstream", "--hold", str(home)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


async def hold(home: Path) -> None:
    async with opened(home, MemoryStore()) as warden:
        await warden.search_tools()
        if warden.tools.get("bad_echo") is not None:
            call: JsonValue = {"toolName": "bad_echo", "arguments": {"text": "x"}}
            step: JsonValue = {"id": "a", "description": "x", "requiredTools": ["bad_echo"], "toolCalls": [call]}
            await warden.execute_plan({"todoList": [step]}, wait_seconds=60)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"peak_mib": round(peak_kib / 1024, 1)}))


def ms(seconds: float) -> float:
    return round(seconds * 1_000, 3)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        anyio.run(hold, Path(sys.argv[2]))
    else:
        main()
