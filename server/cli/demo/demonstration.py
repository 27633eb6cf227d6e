"""The command `demo`: the main job in one screen, with tools that really run and a process that really dies.

A second process runs the plan, is killed with SIGKILL while the question waits, and this one goes on from the file:
the same steps, the same question, nothing done twice. No key, no network; a script plays the model.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.state import ExecutionState
from planwarden.server.cli.commands.run import CliSession, conclude
from planwarden.server.cli.demo import home as demo_home
from planwarden.server.cli.home import CliHome, watch
from planwarden.server.cli.terminal.lines import OUTCOMES, TerminalLine, outcome_lines
from planwarden.server.cli.terminal.terminal import Terminal


def demonstrate(terminal: Terminal, folder: Path | None, *, says_yes: bool) -> tuple[CliHome, ExecutionState]:
    """Run it in `folder`, or in a temporary one that is removed when the demo is over."""
    home_folder = folder.expanduser().absolute() if folder else Path(tempfile.mkdtemp(prefix="planwarden-demo-"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLANWARDEN_")}
    model = demo_home.furnish(home_folder)
    home = CliHome.load(home_folder, model, environment)
    desk = CliSession(home, terminal, says_yes=says_yes)
    terminal.say(
        TerminalLine(
            (("planwarden demo", "bold"), (f"  {home_folder}  no key, no network, a script plays the model", "dim"))
        )
    )
    with _worker(home_folder, environment) as process:
        execution = anyio.run(_watch_worker, home, terminal, process)
        process.kill()
        process.wait()
    killed = f"Process {process.pid} was killed (kill -9) while the question waits."
    terminal.say(TerminalLine(((killed, "warn"), f" Process {os.getpid()} goes on from planwarden.db:"), "note"))
    try:
        execution = desk.converse(execution)
    except KeyboardInterrupt:
        terminal.say("", f"Stopped; the question waits in {home_folder}.")
        raise
    if not execution.is_finished:
        conclude(desk, execution)
        return home, execution
    mark, style = OUTCOMES[execution.status]
    counts, *rest = outcome_lines(execution)
    left = ", ".join(sorted(path.name for path in (home_folder / "reports").iterdir()))
    terminal.panel(
        execution.status, [TerminalLine(counts.parts, mark), *rest, TerminalLine((f"reports left: {left}",))], style
    )
    if folder is None:
        shutil.rmtree(home_folder, ignore_errors=True)
    return home, execution


@contextmanager
def _worker(folder: Path, environment: Mapping[str, str]) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "planwarden.server.cli.demo.process", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=dict(environment)
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def _watch_worker(home: CliHome, terminal: Terminal, process: subprocess.Popen[str]) -> ExecutionState:
    """What the other process does, seen through the file that both share."""
    assert process.stdout is not None
    line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
    if not line.strip():
        raise PlanwardenError("the demo's second process ended before it began; see what it wrote above")
    async with home.acting() as service:
        execution = await service.engine.find(line.strip())
        terminal.say(f"Process {process.pid} runs a plan of five steps:")
        with terminal.live() as update:
            return await watch(service, execution, update)
