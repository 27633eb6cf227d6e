"""The command `demo`: shows planwarden's main job on one screen, with real tool calls and a process that is killed.

A second process runs the plan. It is killed with SIGKILL while the question waits, and this process continues from the
database: the same steps and the same question, and no call runs twice. The demo needs no key and no network; a script
plays the model.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from importlib.resources import files
from pathlib import Path

import anyio

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError, UsageError
from planwarden.agent.common.paths import expand_home
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.output import print_json
from planwarden.server.cli.session import CliSession, exit_code, watch_execution
from planwarden.server.cli.terminal.lines import TerminalLine, outcome_lines
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal
from planwarden.server.views.status_words import WORDS

YEAR_S = 365 * 86_400
REPORTS = {
    "2021-q4.txt": (18_432, 5),
    "2022-q1.txt": (20_480, 4),
    "2022-q2.txt": (22_528, 4),
    "2026-q3.txt": (4_096, 0),
}
"""Size in bytes and age in years of each report."""


def add_demo(parser: CommandParser) -> None:
    parser.handle(handle_demo, needs_home=False)
    parser.declare("--yes", "answer the confirmation with yes")


def handle_demo(arguments: Namespace) -> int:
    """Run the demonstration in the home, or in a temporary folder that is removed when the execution has ended."""
    terminal, folder = build_terminal(arguments), arguments.home
    demo_folder = expand_home(folder).absolute() if folder else Path(tempfile.mkdtemp(prefix="planwarden-demo-"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLANWARDEN_")}
    model = _fill_home(demo_folder, is_interactive=terminal.can_ask or not arguments.yes)
    home = Home.load(demo_folder, model, environment)
    session = CliSession(home, terminal, says_yes=arguments.yes)
    subtitle = f"  {demo_folder}  no key, no network, a script plays the model"
    terminal.line(("planwarden demo", "bold"), (subtitle, "dim"))
    command = [sys.executable, "-m", "planwarden.server.cli.commands.demo", str(demo_folder)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            execution = _watch_worker(home, terminal, process)
        finally:
            process.kill()
    killed = f"Process {process.pid} was killed (kill -9) while the question waits."
    terminal.line((killed, "warn"), f" Process {os.getpid()} continues from planwarden.db:", mark="note")
    try:
        execution = session.ask_open_questions(execution)
    except KeyboardInterrupt:
        terminal.say("", f"Stopped; the question waits in {demo_folder}.")
        raise
    if not execution.is_finished:
        session.draw_outcome(execution)
    else:
        words = WORDS["execution"][execution.status]
        counts, *rest = outcome_lines(execution)
        reports = ", ".join(sorted(path.name for path in (demo_folder / "reports").iterdir()))
        lines = [TerminalLine(*counts.parts, mark=words.mark), *rest, TerminalLine(f"reports left: {reports}")]
        terminal.panel(words.word, lines, words.tone)
        if folder is None:
            shutil.rmtree(demo_folder, ignore_errors=True)
    if arguments.json:
        print_json(session.write_execution(execution))
    return exit_code(execution)


def _fill_home(home: Path, *, is_interactive: bool) -> str:
    """Write settings, tools, a plan, a scripted model and some old files into an empty folder; return the model's name.

    Without a terminal, --yes is not enough for a dangerous call, so the settings lower the risk of the deletion. Like
    real models, the scripted model first only describes its call, and makes the call when planwarden insists.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise UsageError(f"{str(home)!r} is not empty; the demo writes its own files, so give it an empty folder")
    templates = files("planwarden.server.cli.templates")
    for name in ("tools.py", "plan.json", "model.json"):
        (home / name).write_bytes((templates / f"demo_{name}").read_bytes())
    model = f"scripted:{home / 'model.json'}"
    settings = f'model = {json.dumps(model)}\n\n[tools]\npython = ["tools.py"]\n'
    if not is_interactive:
        settings += '\n[tools.deleteReports]\nrisk = "confirm"\n'
    (home / "planwarden.toml").write_text(settings, encoding="utf-8")
    reports = home / "reports"
    reports.mkdir()
    now = time.time()
    for name, (size, years) in REPORTS.items():
        (reports / name).write_bytes(b"." * size)
        os.utime(reports / name, (now, now - years * YEAR_S))
    return model


def _watch_worker(home: Home, terminal: Terminal, process: subprocess.Popen[str]) -> ExecutionState:
    """Draw what the other process does, as the shared database shows it, and return the execution."""
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


def _run_plan_until_killed(home: Path) -> None:
    """Start the plan, print the id of the execution, and run until the process is killed, which the demo does."""
    plan = read_json((home / "plan.json").read_bytes())

    async def run(service: Service) -> None:
        execution = await service.execute_plan(plan, StartOptions(requester=Requester(LOCAL)))
        print(execution.execution_id, flush=True)
        await anyio.sleep_forever()

    Home.load(home).run(run)


if __name__ == "__main__":
    _run_plan_until_killed(Path(sys.argv[1]))
