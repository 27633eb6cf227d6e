"""A newcomer with the README, from the clone to the first plan with a question: `python -m dev.newcomer` (`make walk`).

Everything is real: a clean clone with an environment of its own, processes, a terminal, an MCP client over stdio. It
prints what the newcomer does and sees, with the seconds since they began, and stops where something is not as it should
be.
"""

import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from tests.server.cli.support import Cli, clean_environment, start_on_terminal
from tests.support.paths import ROOT
from tests.support.wardens import plan, tool_step

LIMIT_S = 300.0
PRODUCT = plan(tool_step("product", "calculator", {"expression": "12 * 37"}))


def say(began: float, done: str, seen: str, *, is_right: bool) -> None:
    """Print what was done and seen; end the walk where that is not as it should be."""
    print(f"{time.monotonic() - began:6.1f} s  {done}\n          {' '.join(seen.split())[-200:]}")
    if not is_right:
        sys.exit(f"not as it should be:\n{seen}")


async def walk(folder: Path) -> None:
    """Has the README only: the clone, the demo, the block for the host, a plan with a question."""
    began, clone, cli = time.monotonic(), folder / "planwarden", Cli(folder / "home")

    def run(command: str, cwd: Path = clone) -> str:
        words, environment = shlex.split(command), clean_environment({"PLANWARDEN_HOME": str(cli.home)})
        ended = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        say(began, command, ended.stdout or ended.stderr, is_right=ended.returncode == 0)
        return ended.stdout

    run(f"git clone -q {ROOT} {clone}", folder)
    run("make demo")
    block = run(".venv/bin/planwarden config print claude-code")
    entry = json.loads(block[block.index("{") :])["mcpServers"]["planwarden"]
    environment = clean_environment({"PLANWARDEN_HOME": str(cli.home), **entry.get("env", {})})
    server = StdioServerParameters(command=entry["command"], args=entry["args"], env=environment)
    async with Client(stdio_client(server)) as client:
        answer = json.dumps((await client.call_tool("execute_plan", {"plan": PRODUCT})).structured_content)
        say(began, "the assistant calls execute_plan", answer, is_right="444" in answer)
    run(".venv/bin/planwarden init")
    terminal = start_on_terminal(cli, "run", str(cli.home / "plans" / "first.json"))
    try:
        terminal.expect("Enter leaves it open]")
        terminal.type("y")
        code = terminal.finish()
    finally:
        terminal.close()
    say(
        began, "planwarden run first.json, and y", terminal.text, is_right=code == 0 and "2 of 2 steps" in terminal.text
    )
    say(began, "a plan was approved and understood", "", is_right=time.monotonic() - began < LIMIT_S)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        anyio.run(walk, Path(name))
