"""What a command does while a person waits for it to start and to end, measured without a clock."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from planwarden.server.main import main
from tests.requirements import requirement
from tests.server.cli.support import ERASE, Cli, clean_environment, step

AT_MOST = {"list": 115, "show": 134, "reject": 225}
"""Modules of ours that a command imports; each costs every start about half a millisecond."""

COUNT = """
import json
import sys

from planwarden.server.main import main

code = main(sys.argv[1:])
# Packages hold a docstring and nothing else.
modules = [name for name, module in sys.modules.items() if not hasattr(module, "__path__")]
own = [name for name in modules if name.startswith("planwarden.")]
unwanted = {
    *("aiosqlite", "asyncio", "filelock", "jinja2", "mcp", "platformdirs", "pydantic", "rich", "tempfile", "yaml"),
    # importlib.metadata brings it.
    "zipfile",
}
others = sorted({name.partition(".")[0] for name in sys.modules} & unwanted)
print(json.dumps([code, len(own), others]), file=sys.stderr)
"""
EMBEDDED = """
import asyncio
import sys
from pathlib import Path

import planwarden

@planwarden.tool(risk="read", effect="read")
async def greet(name: str) -> dict[str, str]:
    return {"greeting": f"Hello {name}"}

async def main():
    async with planwarden.Warden(home=Path(sys.argv[1]), tools=[greet]) as warden:
        return await warden.list_suspensions()

found = asyncio.run(main())
print(found.total, sorted({"jinja2", "mcp", "platformdirs", "pydantic", "tempfile", "zipfile"} & sys.modules.keys()))
"""
START = """
import gc
import sys

from planwarden.server import main
from planwarden.server.cli import program

collections = []
load = program.load_handler

def load_handler(name):
    handler = load(name)

    def handle(arguments):
        print(len(collections), gc.isenabled(), gc.get_freeze_count() > 10_000)
        return handler(arguments)

    return handle

program.load_handler = load_handler
gc.callbacks.append(lambda phase, _: collections.append(phase))
sys.argv[1:] = ["--home", sys.argv[1], "list", "--json"]
main.run()
"""


@pytest.mark.slow
@requirement("start:commands")
@pytest.mark.parametrize("command", AT_MOST)
def test_a_command_imports_what_it_needs(cli: Cli, command: str) -> None:
    suspension_id = cli.run_to_question(ERASE)
    words = [command, *([suspension_id] if command == "reject" else [])]
    done = _python(COUNT, "--home", str(cli.home), *words)
    code, count, others = json.loads(done.stderr.splitlines()[-1])
    # A store that is written to waits, and it reads on a thread of its own while the disk is slow.
    needed = {"aiosqlite", "asyncio"} if command == "reject" else set[str]()
    assert (code, {*others} - needed) == (0, set())
    assert 10 < count <= AT_MOST[command], "import it in the module that needs it, or load it when it is asked for"


@pytest.mark.slow
@requirement("start:commands")
def test_settings_and_a_question_without_a_tool_of_the_home_need_no_pydantic(cli: Cli) -> None:
    cli.set_risk("erase", "critical")
    cli.run_to_question(step("ask", "displayConfirmation", {"action": "Close the shop"}))
    for command in ("list", "show"):
        code, count, others = json.loads(_python(COUNT, "--home", str(cli.home), command).stderr.splitlines()[-1])
        assert (code, others) == (0, [])
        assert 10 < count <= AT_MOST["show"]


@pytest.mark.slow
@requirement("start:commands")
def test_a_program_with_plain_tools_reads_what_waits_without_pydantic(tmp_path: Path) -> None:
    done = _python(EMBEDDED, str(tmp_path))
    assert (done.returncode, done.stdout.strip()) == (0, "0 []")


@pytest.mark.slow
@requirement("start:commands")
def test_the_collector_rests_until_a_command_runs_and_then_passes_over_what_was_imported(cli: Cli) -> None:
    done = _python(START, str(cli.home))
    assert (done.returncode, done.stderr.strip()) == (0, "0 True True")


def test_a_command_in_the_process_of_another_program_leaves_its_collector_alone(cli: Cli) -> None:
    before = gc.isenabled(), gc.get_freeze_count()
    assert main(["--home", str(cli.home), "list"]) == 0
    assert (gc.isenabled(), gc.get_freeze_count()) == before


def _python(code: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=120,
        check=False,
    )
