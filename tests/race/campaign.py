"""Two processes with sixteen tasks each race to approve, reject and time out one question, round after round."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from tests.race.worker import SharedClock
from tests.support.fakes import EffectLedger
from tests.support.processes import Worker

ENDS = {"approved": "completed", "rejected": "rejected", "timed_out": "rejected"}


@dataclass(frozen=True, slots=True)
class Report:
    rounds: int
    won: Counter[str]
    """How many questions were approved, rejected and timed out."""
    effects: int
    broken: list[str]
    seconds: float

    def __str__(self) -> str:
        won = " ".join(f"{verdict}={count}" for verdict, count in sorted(self.won.items()))
        return (
            f"decision race: rounds={self.rounds} {won} effects={self.effects} "
            f"broken={len(self.broken)} seconds={self.seconds:.0f}"
        )


def race_again_and_again(folder: Path, rounds: int, seed: int) -> Report:
    """Each round one new question, both processes at once, and then a look at who won and what everybody was told."""
    began = time.monotonic()
    SharedClock.create(folder / "clock")
    ledger = EffectLedger(folder / "effects")
    workers = [Worker("tests.race.worker", str(folder)) for _ in range(2)]
    won, broken = Counter[str](), list[str]()
    keys: dict[str, str] = {}
    for number in range(rounds):
        execution_id, suspension_id, deadline = workers[number % 2].ask(["create"])
        counts = [len(worker.lines) for worker in workers]
        for index, worker in enumerate(workers):
            worker.send(["race", execution_id, suspension_id, deadline, seed + 2 * number + index])
        for worker, count in zip(workers, counts, strict=True):
            worker.wait_for(count + 1)
        told = [told for worker, count in zip(workers, counts, strict=True) for told in worker.lines[count]]
        status, verdict, answers = workers[(number + 1) % 2].ask(["look", execution_id, suspension_id])
        won[str(verdict)] += 1
        keys[f"{execution_id}:book:1"] = str(verdict)
        broken.extend(f"round {number}: {what}" for what in _wrong(told, status, str(verdict), answers))
    for worker in workers:
        worker.close()
    effects = ledger.effects()
    expected = {key for key, verdict in keys.items() if verdict == "approved"}
    broken.extend(f"{key} happened {count} times" for key, count in effects.items() if count > 1)
    broken.extend(f"{key} happened although it was {keys.get(key)}" for key in effects.keys() - expected)
    broken.extend(f"{key} was approved and did not happen" for key in expected - effects.keys())
    return Report(rounds, won, effects.total(), broken, time.monotonic() - began)


def _wrong(told: list[JsonValue], status: JsonValue, verdict: str, answers: JsonValue) -> list[str]:
    """What does not fit to the one winner that the log names."""
    found: list[str] = []
    if answers != 1:
        found.append(f"the log holds {answers} answers")
    if verdict not in ENDS or status != ENDS[verdict]:
        found.append(f"{verdict} led to {status}")
    others = {"approved", "rejected"} - {verdict}
    found.extend(f"somebody was told {said} although it was {verdict}" for said in others & {*map(str, told)})
    return found
