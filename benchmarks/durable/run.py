"""Ask every system the same durable question: `python run.py [URL]`.

The URL is that of a PostgreSQL server on which databases may be made and dropped; without it, no job runs on one.
Each job has a folder, a database and processes of its own; processes die by SIGKILL. Writes `results.json`
and the tables of `README.md`. Linux, because the ledger's clock is compared between processes.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, get_args
from urllib.parse import urlsplit

import psycopg
from workload import REFUSED, SENT, Point

HERE = Path(__file__).parent
COLUMNS = {
    **{f"planwarden, {store}": ("planwarden_side", "planwarden") for store in ("SQLite", "PostgreSQL")},
    **{f"LangGraph, {store}": ("langgraph_side", "langgraph") for store in ("SQLite", "PostgreSQL")},
    **{f"DBOS, {store}": ("dbos_side", "dbos") for store in ("SQLite", "PostgreSQL")},
    "CTRLRun": ("ctrlrun_side", "ctrlrun"),
    "OpenAI Agents": ("openai_agents_side", "openai-agents"),
    "Pydantic AI": ("pydantic_ai_side", "pydantic-ai-slim"),
}
"""The adapter and the package of each."""
COUNTS: dict[str, Callable[[Any], bool]] = {
    "effects lost": lambda job: job["verdict"] == "lost",
    "effects doubled": lambda job: job["verdict"] == "doubled",
    "told the opposite": lambda job: job["verdict"] == "contradicted",
    "ended in an error": lambda job: job["verdict"].startswith("failed"),
    "asked whether it happened": lambda job: job["asked_outcome"] > 0,
    "asked again": lambda job: job["asked_again"] > 0,
    "questions lost": lambda job: job["question_lost"] > 0,
    "delivered to a late caller": lambda job: job["late"] is not None,
    "jobs": lambda job: True,
}
TIMES = {
    "answer to effect, ms": "answered by another process",
    "new process to effect, ms": "answered after a restart",
}


@dataclass(frozen=True)
class Scenario:
    """What happens to one job."""

    kills: tuple[Point | None, ...] = ()
    """The points at which a process is killed; None: while it waits. Those after the question are answered first."""
    desks: tuple[str, ...] = ()
    """What people answer, each in a process of their own. Without them the worker itself is answered."""
    at_once: bool = False
    rounds: int = 1


SCENARIOS = {
    **{f"killed: {point}": Scenario((point,) if "ask" in point else (None, point)) for point in get_args(Point)},
    "answered twice": Scenario(desks=("yes", "yes")),
    "approved by two at once": Scenario(desks=("yes", "yes"), at_once=True, rounds=2),
    "approved and rejected at once": Scenario(desks=("yes", "no"), at_once=True, rounds=2),
    "answered by another process": Scenario(desks=("yes",), rounds=2),
    "answered after a restart": Scenario((None,), rounds=2),
}


class Child(subprocess.Popen[str]):
    """One process of a system."""

    def send(self, command: str) -> None:
        """Hand a command over without waiting for what comes of it."""
        print(command, file=self.stdin, flush=True)

    def read(self) -> dict[str, Any]:
        """Return the next reply; `{}` when the process was killed at its point."""
        for line in self.stdout or ():
            if line.startswith('{"'):
                return json.loads(line)
        if self.wait() != -9:
            raise RuntimeError(f"the process ended by itself with {self.returncode}")
        return {}

    def ask(self, command: str) -> Any:
        """Return the value of a reply. Raise `RuntimeError` when the command failed."""
        self.send(command)
        reply = self.read()
        if "error" in reply:
            raise RuntimeError(f"{command}: {reply['error']}")
        return reply.get("value")


class Job:
    """One job in a folder, and what becomes of it."""

    def __init__(self, system: str, scenario: str, folder: str, url: str) -> None:
        self.outcome: dict[str, Any] = {"system": system, "scenario": scenario, "verdict": "", "late": None, "ms": None}
        self.outcome |= dict.fromkeys(("effects", "asked_again", "asked_outcome", "question_lost"), 0)
        self._scenario, self._adapter, self._folder, self._url = SCENARIOS[scenario], COLUMNS[system][0], folder, url
        self._ledger = Path(folder, "ledger")
        self._children: list[Child] = []
        self._accepted: list[str] = []

    def play(self) -> None:
        """Do what the scenario says, then ask as a caller that comes late, and judge."""
        try:
            start = self._crash_and_answer()
            self.outcome["ms"] = next((round((at - start) / 1e6, 1) for at in self._effects() if at > start), None)
            self.end()
            self.outcome["late"] = self._start(role="desk").ask("result")
            self.outcome["verdict"] = self._judge()
        except (RuntimeError, OSError) as error:
            self.outcome["verdict"] = f"failed: {error}"[:200]
        self.outcome["effects"] = len(self._effects())

    def end(self) -> None:
        """End every process of the job: in order, or by SIGKILL where it does not end."""
        for child in self._children:
            try:
                child.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()

    def _start(self, kill_at: Point | None = None, role: str = "worker") -> Child:
        environment = {**os.environ, "KILL_AT": kill_at or "", "LEDGER": str(self._ledger)}
        command = [sys.executable, str(HERE / "child.py"), self._adapter, role, self._folder, self._url]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._children.append(Child(command, text=True, env=environment, cwd=self._folder, **pipes))
        self._children[-1].read()
        return self._children[-1]

    def _crash_and_answer(self) -> int:
        is_answered = False
        for point in self._scenario.kills:
            child = self._start(point)
            child.ask("advance")
            if is_answered := point is not None and "ask" not in point:
                child.ask("question")
                child.ask("answer yes")
            if point and child.poll() is None:
                raise RuntimeError(f"the process did not come to {point}")
            child.kill()
            child.wait()
        start = time.monotonic_ns()
        worker = self._start()
        worker.ask("advance")
        if self._scenario.desks:
            return self._answer_at_desks()
        for number in range(4):
            question = worker.ask("question")
            if question is None:
                self.outcome["question_lost"] = int(number == 0 and not is_answered)
                break
            asks = question == "approve"
            self.outcome["asked_outcome"] += not asks
            self.outcome["asked_again"] += asks and is_answered
            is_answered = is_answered or asks
            worker.ask(f"answer {'yes' if asks or self._effects() else 'no'}")
        return start

    def _answer_at_desks(self) -> int:
        desks = [(self._start(role="desk"), word) for word in self._scenario.desks]
        starts: list[int] = []
        for desk, _ in desks:
            desk.ask("question")
        for batch in [desks] if self._scenario.at_once else [[desk] for desk in desks]:
            for desk, word in batch:
                desk.send(f"answer {word}")
            for desk, word in batch:
                reply = desk.read()
                starts.append(reply["began"])
                self._accepted += [word] if "value" in reply else []
        return min(starts)

    def _effects(self) -> list[int]:
        return [int(line) for line in self._ledger.read_text().split()] if self._ledger.exists() else []

    def _judge(self) -> str:
        effects, late = len(self._effects()), self.outcome["late"]
        if effects > 1:
            return "doubled"
        if len(set(self._accepted)) > 1 or (late, effects) in ((SENT, 0), (REFUSED, 1)):
            return "contradicted"
        return "right" if effects or "no" in self._accepted else "lost"


def measure(system: str, server: str) -> list[dict[str, Any]]:
    """Run every scenario of one column, one after the other."""
    outcomes: list[dict[str, Any]] = []
    for name in [name for name, scenario in SCENARIOS.items() for _ in range(scenario.rounds)]:
        with ExitStack() as stack:
            folder, url = stack.enter_context(tempfile.TemporaryDirectory(prefix="durable-")), ""
            if "PostgreSQL" in system:
                database = f"{COLUMNS[system][0]}_{len(outcomes)}"
                connection = stack.enter_context(psycopg.connect(server, autocommit=True))
                connection.execute(f"CREATE DATABASE {database}".encode())
                stack.callback(connection.execute, f"DROP DATABASE {database} WITH (FORCE)".encode())
                url = urlsplit(server)._replace(path=f"/{database}").geturl()
            job = Job(system, name, folder, url)
            stack.callback(job.end)
            job.play()
        outcomes.append(job.outcome)
        print(f"{system:24} {name:32} {job.outcome['verdict']}", file=sys.stderr)
    return outcomes


def count(version: str, jobs: list[Any]) -> dict[str, Any]:
    """Return the figures of one system, by the words of the table."""
    sums: dict[str, Any] = {"version": version, **{words: sum(map(test, jobs)) for words, test in COUNTS.items()}}
    for words, scenario in TIMES.items():
        times = [job["ms"] for job in jobs if job["scenario"] == scenario and job["ms"] is not None]
        sums[words] = round(median(times)) if times else None
    return sums


def describe(job: Any) -> str:
    """Return a word for what became of a job."""
    asked = "asked: sent?" if job["asked_outcome"] else "asked again" if job["asked_again"] else "right"
    return asked if job["verdict"] == "right" else job["verdict"].partition(":")[0]


def list_worst(systems: Iterable[str], outcomes: list[Any]) -> list[list[str]]:
    """Return a row for each scenario, with the worst of the jobs of each system."""
    cells: dict[str, dict[str, str]] = {job["scenario"]: {} for job in outcomes}
    for job in sorted(outcomes, key=lambda job: job["verdict"] != "right"):
        cells[job["scenario"]][job["system"]] = describe(job)
    return [[scenario, *(row[system] for system in systems)] for scenario, row in cells.items()]


def write_report(about: str, versions: dict[str, str], outcomes: list[Any]) -> None:
    """Write the results, and the tables in the README."""
    systems = {name: count(versions[name], [job for job in outcomes if job["system"] == name]) for name in versions}
    sums = ",\n".join(f"  {json.dumps(name)}: {json.dumps(figures)}" for name, figures in systems.items())
    jobs = ",\n".join(f"  {json.dumps(job)}" for job in outcomes)
    text = f'{{\n "about": {json.dumps(about)},\n "systems": {{\n{sums}\n }},\n "outcomes": [\n{jobs}\n ]\n}}\n'
    (HERE / "results.json").write_text(text, encoding="utf-8")
    figures = [[words, *(sums[words] for sums in systems.values())] for words in next(iter(systems.values()))]
    tables = [
        [["", *systems], ["---", *["---:"] * len(systems)], *rows] for rows in (figures, list_worst(systems, outcomes))
    ]
    parts = ["\n".join(f"| {' | '.join(map(str, row))} |" for row in table) for table in tables]
    readme = HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition("<!-- table -->\n")
    after = rest.partition("<!-- end -->")[2]
    content = "\n\n".join([*parts, f"{about}."])
    readme.write_text(f"{before}<!-- table -->\n{content}\n<!-- end -->{after}", encoding="utf-8")


def main() -> None:
    """Measure the columns, two at a time, and write the results."""
    server = "".join(sys.argv[1:2])
    systems = {name: version(package) for name, (_, package) in COLUMNS.items() if server or "PostgreSQL" not in name}
    with ThreadPoolExecutor(2) as pool:
        outcomes = [job for jobs in pool.map(partial(measure, server=server), systems) for job in jobs]
    machine = f"{platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    write_report(f"{datetime.now(UTC):%Y-%m-%d}, {machine}", systems, outcomes)


if __name__ == "__main__":
    main()
