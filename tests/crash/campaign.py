"""Killing real processes again and again while they work on one file, and counting what broke.

Two processes always run: when one is killed in the middle of something, the other is already there, or starting, and
what the dead one left behind is taken over. At the end a last process finishes everything, and all that was ever
acknowledged by any of them is looked up.
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.storage.sqlite.store import SqliteStore
from tests.crash.scenario import Acknowledged, violations
from tests.support.fakes import EffectLedger
from tests.support.processes import Worker

MODULE = "tests.crash.worker"


@dataclass(frozen=True, slots=True)
class Report:
    rounds: int
    executions: int
    acknowledged: int
    """Executions begun, answers and ends that some process was told, and said so."""
    effects: int
    broken: list[str]
    unknown_outcomes: int
    """Calls whose outcome a person had to look up, because the process died around them."""
    seconds: float

    def __str__(self) -> str:
        twice = sum(1 for what in self.broken if "times" in what)
        lost = sum(1 for what in self.broken if "lost" in what)
        stuck = sum(1 for what in self.broken if "stuck" in what)
        return (
            f"kill -9: rounds={self.rounds} executions={self.executions} effects={self.effects} "
            f"acknowledged={self.acknowledged} reconciled={self.unknown_outcomes} duplicates={twice} lost={lost} "
            f"stuck={stuck} other={len(self.broken) - twice - lost - stuck} seconds={self.seconds:.0f}"
        )


async def kill_again_and_again(folder: Path, rounds: int, seed: int, expected: JsonValue) -> Report:
    """`rounds` processes killed after a random number of marks, then a look at everything that they left behind."""
    began, chance, acknowledged = time.monotonic(), random.Random(seed), Acknowledged()
    current = Worker(MODULE, "toil", str(folder))
    for _ in range(rounds):
        following = Worker(MODULE, "toil", str(folder))
        current.wait_for(len(current.lines) + chance.choice([0, 1, 5, 20, 100, 400]) + chance.randrange(20))
        if chance.randrange(2):
            # Half of them die around a tool, where it matters most.
            current.wait_for(len(current.lines) + 1, last=["mark", "tool"])
        current.check()
        current.kill()
        _remember(current, acknowledged)
        current = following
    current.kill()
    _remember(current, acknowledged)
    last = Worker(MODULE, "toil", str(folder), "finish")
    try:
        last.finish()
    finally:
        _remember(last, acknowledged)
    ledger, executions = EffectLedger(folder / "effects"), await _stored(folder)
    suspensions = [found.question.kind for state in executions.values() for found in state.suspensions.values()]
    return Report(
        rounds=rounds,
        executions=len(executions),
        acknowledged=len(acknowledged.created) + len(acknowledged.answered) + len(acknowledged.finished),
        effects=ledger.effects().total(),
        broken=violations(acknowledged, ledger, executions, expected),
        unknown_outcomes=suspensions.count("reconcile"),
        seconds=time.monotonic() - began,
    )


def _remember(worker: Worker, acknowledged: Acknowledged) -> None:
    for kind, subject, *rest in worker.lines:
        match kind:
            case "created":
                acknowledged.created.append(str(subject))
            case "answered":
                acknowledged.answered[str(subject)] = rest[0] is True
            case "finished":
                acknowledged.finished[str(subject)] = str(rest[0])
            case _:
                pass


async def _stored(folder: Path) -> dict[str, ExecutionState]:
    store = SqliteStore.open(folder / "planwarden.db")
    try:
        headers = await store.executions(None, 1_000_000)
        return {h.execution_id: await load_execution(store, h) for h in headers}
    finally:
        await store.close()
