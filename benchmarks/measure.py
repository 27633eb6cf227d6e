"""The measurements; each returns plain numbers. Seconds are per execution unless they say otherwise.

All sides run in processes of their own and take turns in every round, in an order that rotates, so that a slow minute
of the machine hits all of them. Nothing is asserted and nothing is thrown away: the report shows medians and extremes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import commands, footprint, startup
from benchmarks.floor import BODIES
from benchmarks.side import IN_FLIGHT

SEQUENTIAL = 40
COUNTED = 5
"""Executions whose commits are counted; few enough to stay below SQLite's automatic checkpoint."""

QUICK = 5
"""How many times as many executions a quick side runs per sample, so that all samples take about as long."""

STARTS = 9


@dataclass(frozen=True, slots=True)
class Spec:
    """One side and how much of it is needed for its sizes."""

    name: str
    module: str
    variant: str
    database: str
    finished: int = 0
    suspended: int = 0
    times: int = 1


PLANWARDEN = Spec("planwarden", "planwarden_side", "planwarden", "planwarden.db", 2_000, 10_000, QUICK)
HEADLINE = Spec("langgraph step-nodes", "langgraph_peer", "step-nodes", "langgraph.db", 200, 200)
FLOOR = Spec("floor", "floor", "floor", "floor.db", times=QUICK)
PEERS = (
    HEADLINE,
    Spec("langgraph plan-executor", "langgraph_peer", "plan-executor", "langgraph.db", 200, 200),
    Spec("langgraph bare", "langgraph_peer", "bare", "langgraph.db", 200, 200),
    Spec("langgraph functional", "langgraph_peer", "functional", "langgraph.db", 200, 200),
)
SIDES = (PLANWARDEN, *PEERS, FLOOR)


@dataclass(slots=True)
class Figures:
    """What one side took."""

    sequential: list[float] = field(default_factory=list[float])
    concurrent: list[float] = field(default_factory=list[float])
    sequential_cpu: list[float] = field(default_factory=list[float])
    concurrent_cpu: list[float] = field(default_factory=list[float])
    switches: list[float] = field(default_factory=list[float])
    """Times that an execution gave the processor up to wait, one execution after the other."""
    commits: float = 0.0
    log_bytes: float = 0.0
    """Written to the write-ahead log per execution, one execution after the other."""
    idle_bytes: int = 0
    """Memory after opening, before the first execution."""
    peak_bytes: int = 0
    """Memory at most, after the timed rounds."""
    finished_bytes: float | None = None
    suspended_bytes: float | None = None


class Child:
    """A side in its own process; see `benchmarks.child`."""

    def __init__(self, spec: Spec, folder: Path, tree: Path | None = None) -> None:
        """`tree` is another checkout of planwarden, to be run with its own Python; None for this one."""
        folder.mkdir(parents=True, exist_ok=True)
        python = sys.executable if tree is None else str(tree / ".venv/bin/python")
        self.spec = spec
        self.database = folder / spec.database
        self.figures = Figures()
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.child", spec.module, spec.variant, str(folder)],
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def ask(self, do: str, count: int = 0) -> dict[str, Any]:
        """Sends a command and returns the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "count": count}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.spec.name} ended with code {self._process.wait()}; its error is above")
        return json.loads(line)


@contextmanager
def children(folder: Path) -> Generator[list[Child]]:
    """Every side, started, warmed up and waiting."""
    _, bodies = startup.timed("benchmarks.planwarden_side", str(folder / "log"))
    (folder / FLOOR.variant).mkdir(parents=True)
    (folder / FLOOR.variant / BODIES).write_text(json.dumps(bodies))
    with ExitStack() as stack:
        started = [stack.enter_context(Child(spec, folder / spec.variant)) for spec in SIDES]
        for child in started:
            child.figures.idle_bytes = child.ask("peak")["bytes"]
            child.ask("sequential", 10)
            child.ask("concurrent", IN_FLIGHT)
        yield started


def count_commits(started: Iterable[Child]) -> None:
    """Returns the transactions and the bytes of log that one execution costs, counted in the log itself."""
    for child in started:
        # A side that slept renews its leases first, which belongs to no execution; give it time for that.
        child.ask("sequential", SEQUENTIAL)
        footprint.settle(child.database)
        child.ask("sequential", COUNTED)
        child.figures.commits = footprint.commits(child.database) / COUNTED
        child.figures.log_bytes = footprint.log_bytes(child.database) / COUNTED


def throughput(started: list[Child], rounds: int) -> Iterator[int]:
    """Time every side in turn; yields after each round."""
    for turn in range(rounds):
        shift = turn % len(started)
        for child in started[shift:] + started[:shift]:
            count = SEQUENTIAL * child.spec.times
            took = child.ask("sequential", count)
            child.figures.sequential.append(took["seconds"] / count)
            child.figures.sequential_cpu.append(took["cpu"] / count)
            child.figures.switches.append(took["switches"] / count)
            count = IN_FLIGHT * child.spec.times
            took = child.ask("concurrent", count)
            child.figures.concurrent.append(took["seconds"] / count)
            child.figures.concurrent_cpu.append(took["cpu"] / count)
        yield turn + 1
    for child in started:
        child.figures.peak_bytes = child.ask("peak")["bytes"]


def sizes(started: Iterable[Child]) -> list[tuple[str, str]]:
    """Measures bytes per finished and per suspended execution; returns questions of planwarden that now wait."""
    waiting: list[tuple[str, str]] = []
    for child in started:
        if not child.spec.finished:
            continue
        empty = footprint.settle(child.database)
        child.ask("concurrent", child.spec.finished)
        finished = footprint.settle(child.database)
        answer = child.ask("suspend", child.spec.suspended)
        suspended = footprint.settle(child.database)
        child.figures.finished_bytes = (finished - empty) / child.spec.finished
        child.figures.suspended_bytes = (suspended - finished) / child.spec.suspended
        if child.spec is PLANWARDEN:
            waiting = [(thread, suspension) for thread, suspension in answer["waiting"]]
    return waiting


def cold_resume(home: Path, waiting: list[tuple[str, str]]) -> dict[str, Any]:
    """Measures whole-process seconds of resuming one of many in a fresh process, and of Python alone."""
    # The disk still writes what was made for the figures before.
    os.sync()
    resumed: list[float] = []
    bare: list[float] = []
    says: dict[str, Any] = {}
    for thread, suspension in waiting[:STARTS]:
        bare.append(startup.interpreter())
        seconds, says = startup.cold_resume(home, thread, suspension)
        resumed.append(seconds)
    return {"seconds": resumed, "interpreter": bare, **says}


def first_answer(folder: Path) -> dict[str, Any] | str:
    """Measures seconds to the first answers of planwarden's server and of an empty one, or says why there are none."""
    if not startup.has_server():
        return "there is no server yet"
    try:
        return _first_answers(folder)
    except startup.NoAnswer as error:
        return str(error)


def _first_answers(folder: Path) -> dict[str, Any]:
    """By version of the protocol and server."""
    environment = {"PLANWARDEN_HOME": str(folder / "server")}
    servers = {"planwarden": startup.SERVER_COMMAND, "empty": startup.EMPTY_COMMAND}
    found: dict[str, Any] = {
        version: {name: {"first": [], "tools_list": [], "idle_bytes": []} for name in servers}
        for version in startup.VERSIONS
    }
    for turn in range(STARTS + 1):
        for version in startup.VERSIONS:
            for name, command in servers.items():
                answer = startup.first_answer(command, environment, version)
                if turn:
                    # The first start of each compiles what was not compiled and creates the database.
                    found[version][name]["first"].append(answer.first_s)
                    found[version][name]["tools_list"].append(answer.tools_s)
                    found[version][name]["idle_bytes"].append(answer.idle_bytes)
    return found


def person_commands(folder: Path) -> dict[str, list[float]]:
    """Seconds from start to exit of what people run; see `benchmarks.commands`."""
    return commands.measure(folder / "commands", STARTS)
