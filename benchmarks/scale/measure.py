"""Starts processes of the sides and lets them take turns; returns plain numbers, seconds unless they say otherwise."""

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from benchmarks.scale.server import read_cpu
from benchmarks.scale.side import TIMEOUT_S

PROCESSES = (1, 2, 4)
AT_ONCE = 100
"""Executions at once in all processes of a side together."""
WARM_S, SAMPLE_S = 0.5, 1.5
"""Seconds in which executions start; all of them end before the next sample."""
DECISIONS = 150
PAUSE_S = 0.02
"""Between decisions, so that nothing else happens when one comes."""
HELD = 5
"""Executions that a process holds when it is killed or stopped."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A side, and what it can do."""

    name: str
    crosses: bool = True
    """Another process can decide."""
    takes_over: bool = True


PLANWARDEN = Spec("planwarden")
DBOS = Spec("dbos", takes_over=False)
LANGGRAPH = Spec("langgraph", crosses=False, takes_over=False)
PROCRASTINATE = Spec("procrastinate")
FRONT = "front"
"""Of planwarden; it decides only."""
SIDES = (PLANWARDEN, DBOS, LANGGRAPH, PROCRASTINATE)


class Child:
    """One process of a side; see `benchmarks.scale.child`. `effects` are those it reported: name and time."""

    def __init__(self, side: str, url: str, effects: SimpleQueue[tuple[str, float]] | None = None) -> None:
        self.side = side
        self.effects: SimpleQueue[tuple[str, float]] = effects or SimpleQueue()
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale.child", side, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def ask(self, do: str, **arguments: object) -> None:
        """Sends a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """The answer to the oldest command that has none yet."""
        found = self._answers.get(timeout=TIMEOUT_S)
        if found is None:
            raise RuntimeError(f"{self.side} ended with code {self._process.wait()}; its error is above")
        return found

    def call(self, do: str, **arguments: object) -> dict[str, Any]:
        """Sends a command and returns the answer."""
        self.ask(do, **arguments)
        return self.result()

    def stop(self) -> None:
        """Freezes it, as a machine that pauses does."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Ends it as a crash does."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found: dict[str, Any] = json.loads(line)
            if "effect" in found:
                self.effects.put((found["effect"], found["at"]))
            else:
                self._answers.put(found)
        self._answers.put(None)


def start(stack: ExitStack, spec: Spec, url: str) -> list[Child]:
    """As many processes of the side as are measured, warmed up; the first one makes the tables."""
    children = [stack.enter_context(Child(spec.name, url))]
    others = [Child(spec.name, url) for _ in range(max(PROCESSES) - 1)]
    children += [stack.enter_context(child) for child in others]
    for child in children:
        child.ask("run", seconds=WARM_S, at_once=AT_ONCE // len(children))
    for child in children:
        child.result()
    return children


def measure_rate(children: Sequence[Child], folder: Path) -> dict[str, float]:
    """Executions a second that the processes make together; the CPU seconds of one in them, and in the database.

    `folder` has the database's data.
    """
    database_cpu = read_cpu(folder)
    for child in children:
        child.ask("run", seconds=SAMPLE_S, at_once=AT_ONCE // len(children))
    found = [child.result() for child in children]
    count = sum(each["done"] for each in found)
    seconds = max(each["end"] for each in found) - min(each["start"] for each in found)
    return {
        "rate": count / seconds,
        "cpu": sum(each["cpu"] for each in found) / count,
        "database_cpu": (read_cpu(folder) - database_cpu) / count,
    }


def measure_decisions(first: Child, decider: Child) -> list[float]:
    """From a decision in one process to its effect in another one, when nothing else happens.

    The executions begin in `first`; both, and the process that has the effect, report to the effects of `first`.
    """
    waiting = {name: first.call("wait", name=name)["waiting"] for name in (uuid4().hex for _ in range(DECISIONS))}
    taken: list[float] = []
    for name, what in waiting.items():
        time.sleep(PAUSE_S)
        began = decider.call("decide", waiting=what)["start"]
        taken.append(_await_effects(first.effects, [name])[0] - began)
    return taken


def measure_takeover(spec: Spec, url: str, *, kills: bool) -> list[float]:
    """From the end (or the stop) of a process to the call's new start in another one, for each execution it held."""
    effects: SimpleQueue[tuple[str, float]] = SimpleQueue()
    with Child(spec.name, url, effects) as owner:
        names = [uuid4().hex for _ in range(HELD)]
        for name in names:
            owner.call("hold", name=name)
        _await_effects(effects, names)
        with Child(spec.name, url, effects) as heir:
            time.sleep(2.0)
            began = time.monotonic()
            if kills:
                owner.kill()
            else:
                owner.stop()
            found = _await_effects(effects, names)
            owner.kill()
            heir.kill()
            return [at - began for at in found]


def _await_effects(effects: SimpleQueue[tuple[str, float]], names: Sequence[str]) -> list[float]:
    """When each of the named ones came, in that order; what a round before left behind may come between them."""
    found: dict[str, float] = {}
    while not found.keys() >= set(names):
        name, at = effects.get(timeout=TIMEOUT_S)
        found[name] = at
    return [found[name] for name in names]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "samples": len(values)}


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a share of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
