"""What `demo` does: it shows the main job on one screen, with tools that really run and a process that is killed.

A second process runs the plan. It is killed with SIGKILL while the question waits, and this process continues from the
database: the same steps and the same question, and no call runs twice. It needs no key and no network; a script plays
the model.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.paths import expand_home
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.cli.demo.home import fill_home
from planwarden.server.cli.session import CliSession, watch_execution
from planwarden.server.cli.terminal.lines import TerminalLine, outcome_lines
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.status_words import WORDS


def run_demonstration(terminal: Terminal, folder: Path | None, *, says_yes: bool) -> tuple[Home, ExecutionState]:
    """Run the demonstration in `folder`, or in a temporary folder that it removes when the execution has ended."""
    place = expand_home(folder).absolute() if folder else Path(tempfile.mkdtemp(prefix="planwarden-demo-"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLANWARDEN_")}
    model = fill_home(place, is_attended=terminal.can_ask or not says_yes)
    home = Home.load(place, model, environment)
    session = CliSession(home, terminal, says_yes=says_yes)
    subtitle = f"  {place}  no key, no network, a script plays the model"
    terminal.say(TerminalLine((("planwarden demo", "bold"), (subtitle, "dim"))))
    with _start_worker(place, environment) as process:
        execution = _watch_worker(home, terminal, process)
        process.kill()
        process.wait()
    killed = f"Process {process.pid} was killed (kill -9) while the question waits."
    terminal.say(TerminalLine(((killed, "warn"), f" Process {os.getpid()} continues from planwarden.db:"), "note"))
    try:
        execution = session.ask_open_questions(execution)
    except KeyboardInterrupt:
        terminal.say("", f"Stopped; the question waits in {place}.")
        raise
    if not execution.is_finished:
        session.draw_outcome(execution)
        return home, execution
    words = WORDS["execution"][execution.status]
    counts, *rest = outcome_lines(execution)
    reports = ", ".join(sorted(path.name for path in (place / "reports").iterdir()))
    lines = [TerminalLine(counts.parts, words.mark), *rest, TerminalLine((f"reports left: {reports}",))]
    terminal.panel(words.word, lines, words.tone)
    if folder is None:
        shutil.rmtree(place, ignore_errors=True)
    return home, execution


@contextmanager
def _start_worker(home: Path, environment: Mapping[str, str]) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "planwarden.server.cli.demo.process", str(home)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=dict(environment)
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _watch_worker(home: Home, terminal: Terminal, process: subprocess.Popen[str]) -> ExecutionState:
    """Draw what the other process does, which this process reads from the shared database."""
    assert process.stdout is not None
    execution_id = process.stdout.readline().strip()
    if not execution_id:
        raise PlanwardenError("the demo's second process ended before it began; see what it wrote above")

    async def watch(service: Service) -> ExecutionState:
        execution = await service.find(execution_id)
        terminal.say(f"Process {process.pid} runs a plan of five steps:")
        with terminal.live() as update:
            return await watch_execution(service, execution, update)

    return home.run(watch)
