"""How long the guard needs for a decision by rule: `python -m benchmarks.guard`; writes results/guard.json.

* Through `guard_call`, as Claude Code's hook asks: from the request on standard input to the answer, server warm.
* As the command that Codex and Gemini CLI run, with the shell around it: from `fork` to exit, once beside a server that
  runs, and once alone.

Each decision is recorded in a SQLite database on the disk where planwarden keeps its data by default.
"""

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import describe_machine, make_folder, write_result
from benchmarks.startup import ENVIRONMENT, PROGRAM, RawServer
from planwarden.server.cli.hosts import find_launch_command
from planwarden.server.guard.install.hook_files import build_command

CALLS = 200
COMMANDS = 30
RULES = """
[[rules]]
tool = "*/Bash"
when = { command = { matches = "npm (test|run lint)" }, cwd = { under = "/srv" } }
then = "allow"
"""
EVENT = {"tool_name": "Bash", "tool_input": {"command": "npm test"}, "cwd": "/srv/shop"}


def main() -> None:
    """Measure, print and write."""
    with make_folder() as home:
        (home / "planwarden.toml").write_text(RULES, encoding="utf-8")
        facts = describe_machine(home)
        with RawServer([*PROGRAM, "serve", "--home", str(home)]) as server:
            rows = {"guard_call": measure(CALLS, partial(call_guard, server))}
            rows["command_with_server"] = measure(COMMANDS, partial(run_hook, home))
        rows["command_alone"] = measure(COMMANDS, partial(run_hook, home))
    write_result("guard", {"about": facts, **rows})
    for name, row in rows.items():
        print(f"{name:>20}: median {row['median_ms']} ms, 95 % {row['p95_ms']} ms, most {row['max_ms']} ms")


def measure(times: int, run: Callable[[], None]) -> dict[str, float]:
    """Return milliseconds of a run, without the first one, which finds nothing warm."""
    seconds: list[float] = []
    for _ in range(times + 1):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    values = sorted(seconds[1:])
    figures = {"median_ms": statistics.median(values), "p95_ms": statistics.quantiles(values, n=20)[-1]}
    return {name: round(value * 1000, 1) for name, value in {**figures, "max_ms": values[-1]}.items()}


def call_guard(server: RawServer) -> None:
    """Ask the tool."""
    result = server.call("tools/call", name="guard_call", arguments={"host": "claude-code", **EVENT})
    text = result["content"][0]["text"]
    assert json.loads(text)["hookSpecificOutput"]["permissionDecision"] == "allow", text


def run_hook(home: Path) -> None:
    """Run the command as a host does."""
    launch = find_launch_command({})
    program = (launch.command, *launch.args) if launch.command != "uvx" else PROGRAM
    subprocess.run(
        ["bash", "-c", build_command("codex", program)],
        input=json.dumps(EVENT),
        text=True,
        capture_output=True,
        env={**ENVIRONMENT, "PLANWARDEN_HOME": str(home)},
        check=True,
    )


if __name__ == "__main__":
    main()
