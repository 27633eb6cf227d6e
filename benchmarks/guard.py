"""How long the guard needs for a decision by rule: `python -m benchmarks.guard`; writes results/guard.json.

* Through `guard_call`, as Claude Code's hook asks: from the request on standard input to the answer, server warm.
* As the command that Codex and Gemini CLI run, with the shell around it: from `fork` to exit, once beside a server that
  runs, and once alone.

Each decision is recorded in a SQLite database on the disk where planwarden keeps its data by default.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from benchmarks.report import about
from benchmarks.startup import ENVIRONMENT, SERVER, SERVER_COMMAND, TIMEOUT_S, WITH_HANDSHAKE, read_answer, send
from planwarden.server.cli.hosts import find_launch_command
from planwarden.server.guard.install.hook_files import build_command

CALLS = 200
COMMANDS = 30
RESULT = Path(__file__).parent / "results" / "guard.json"
RULES = """
[[rules]]
tool = "*/Bash"
when = { command = { matches = "npm (test|run lint)" }, cwd = { under = "/srv" } }
then = "allow"
"""
EVENT = {"tool_name": "Bash", "tool_input": {"command": "npm test"}, "cwd": "/srv/shop"}
GUARD_CALL = {"name": "guard_call", "arguments": {"host": "claude-code", **EVENT}}


def main() -> None:
    """Measures, prints and writes."""
    folder = user_cache_path("planwarden")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-") as made:
        home = Path(made)
        (home / "planwarden.toml").write_text(RULES, encoding="utf-8")
        found: dict[str, Any] = {"about": about(home, ())}
        with run_server(home) as server:
            found["guard_call"] = summarise(repeat(CALLS, lambda number: call_guard(server, number)))
            found["command_with_server"] = summarise(repeat(COMMANDS, lambda _: run_hook(home)))
        found["command_alone"] = summarise(repeat(COMMANDS, lambda _: run_hook(home)))
    RESULT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for name in ("guard_call", "command_with_server", "command_alone"):
        row = found[name]
        print(f"{name:>20}: median {row['median_ms']} ms, 95 % {row['p95_ms']} ms, most {row['max_ms']} ms")


def repeat(times: int, run: Callable[[int], None]) -> list[float]:
    """Returns the seconds of each run, without the first one, which finds nothing warm."""
    seconds: list[float] = []
    for number in range(times + 1):
        start = time.perf_counter()
        run(number)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def summarise(seconds: list[float]) -> dict[str, float]:
    """Returns milliseconds."""
    found = {"median_ms": statistics.median(seconds), "p95_ms": statistics.quantiles(seconds, n=20)[-1]}
    return {name: round(value * 1000, 1) for name, value in {**found, "max_ms": max(seconds)}.items()}


@contextmanager
def run_server(home: Path) -> Generator["subprocess.Popen[str]"]:
    """A server of the home that has shaken hands with its host."""
    client = {"name": "benchmark", "version": "1"}
    opening = {"protocolVersion": WITH_HANDSHAKE, "capabilities": {}, "clientInfo": client}
    command = [*SERVER_COMMAND, "--home", str(home)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT
    ) as process:
        send(process, {"id": "open", "method": "initialize", "params": opening})
        read_answer(process, "open")
        send(process, {"method": "notifications/initialized"})
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(TIMEOUT_S)


def call_guard(server: "subprocess.Popen[str]", number: int) -> None:
    send(server, {"id": number, "method": "tools/call", "params": GUARD_CALL})
    text = read_answer(server, number)["content"][0]["text"]
    assert json.loads(text)["hookSpecificOutput"]["permissionDecision"] == "allow", text


def run_hook(home: Path) -> None:
    launch = find_launch_command({})
    program = (launch.command, *launch.args) if launch.command != "uvx" else (sys.executable, "-m", SERVER)
    command = ["bash", "-c", build_command("codex", program)]
    environment = {**ENVIRONMENT, "PLANWARDEN_HOME": str(home)}
    done = subprocess.run(
        command, input=json.dumps(EVENT), text=True, capture_output=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    main()
