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

import anyio

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.paths import expand_home
from planwarden.agent.core.state import ExecutionState
from planwarden.server.cli.context import CliContext, watch_execution
from planwarden.server.cli.demo.home import fill_home
from planwarden.server.cli.session import CliSession
from planwarden.server.cli.terminal.lines import TerminalLine, outcome_lines
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.status_words import WORDS


def run_demonstration(terminal: Terminal, folder: Path | None, *, says_yes: bool) -> tuple[CliContext, ExecutionState]:
    """Runs the demonstration in `folder`, or in a temporary folder that it removes when the execution has ended."""
    home = expand_home(folder).absolute() if folder else Path(tempfile.mkdtemp(prefix="planwarden-demo-"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLANWARDEN_")}
    model = fill_home(home, is_attended=terminal.can_ask or not says_yes)
    context = CliContext.load(home, model, environment)
    session = CliSession(context, terminal, says_yes=says_yes)
    subtitle = f"  {home}  no key, no network, a script plays the model"
    terminal.say(TerminalLine((("planwarden demo", "bold"), (subtitle, "dim"))))
    with _start_worker(home, environment) as process:
        execution = anyio.run(_watch_worker, context, terminal, process)
        process.kill()
        process.wait()
    killed = f"Process {process.pid} was killed (kill -9) while the question waits."
    terminal.say(TerminalLine(((killed, "warn"), f" Process {os.getpid()} continues from planwarden.db:"), "note"))
    try:
        execution = session.ask_open_questions(execution)
    except KeyboardInterrupt:
        terminal.say("", f"Stopped; the question waits in {home}.")
        raise
    if not execution.is_finished:
        session.draw_outcome(execution)
        return context, execution
    words = WORDS["execution"][execution.status]
    counts, *rest = outcome_lines(execution)
    reports = ", ".join(sorted(path.name for path in (home / "reports").iterdir()))
    lines = [TerminalLine(counts.parts, words.mark), *rest, TerminalLine((f"reports left: {reports}",))]
    terminal.panel(words.word, lines, words.tone)
    if folder is None:
        shutil.rmtree(home, ignore_errors=True)
    return context, execution


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


async def _watch_worker(context: CliContext, terminal: Terminal, process: subprocess.Popen[str]) -> ExecutionState:
    """Draws what the other process does, which this process reads from the shared database."""
    assert process.stdout is not None
    line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
    if not line.strip():
        raise PlanwardenError("the demo's second process ended before it began; see what it wrote above")
    async with context.open_for_writing() as service:
        execution = await service.engine.find(line.strip())
        terminal.say(f"Process {process.pid} runs a plan of five steps:")
        with terminal.live() as update:
            return await watch_execution(service, execution, update)
