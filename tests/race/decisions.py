"""Two processes with sixteen tasks each race to approve, reject and time out one question, round after round."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.ledger import Ledger
from tests.harness.process import Worker

ENDS = {"approved": "completed", "rejected": "rejected", "timed_out": "rejected"}


@dataclass(frozen=True, slots=True)
class Report:
    won: Counter[str]
    """How many questions were approved, rejected and timed out."""
    effects: int
    broken: list[str]


@contextmanager
def open_racers(folder: Path, url: str = "") -> Generator[list[Worker]]:
    """Start two processes that race on one store."""
    racers = list[Worker]()
    try:
        # One after the other, because the first one makes the tables.
        for _ in range(2):
            racers.append(Worker("tests.race.racer:serve", str(folder), url))
            assert racers[-1].read() == "ready"
        yield racers
        for racer in racers:
            racer.close()
    finally:
        for racer in racers:
            racer.kill()


def ask_all(racers: list[Worker], *questions: Any) -> list[Any]:
    """Return the answers of all processes, each of which is asked before any has answered."""
    for racer, question in zip(racers, questions, strict=True):
        racer.send(question)
    return [racer.read() for racer in racers]


def race_again_and_again(folder: Path, rounds: int, seed: int) -> Report:
    """Ask one new question each round, let both processes decide, and look who won and what everybody was told."""
    won, broken, verdicts = Counter[str](), list[str](), dict[str, str]()
    with open_racers(folder) as racers:
        for number in range(rounds):
            execution_id, *asked = racers[number % 2].ask(["ask"])
            races = [["decide", execution_id, *asked, seed + 2 * number + index] for index in range(2)]
            told = {word for words in ask_all(racers, *races) for word in words}
            status, verdict, answers = racers[(number + 1) % 2].ask(["look", execution_id, asked[0]])
            won[verdict] += 1
            verdicts[f"{execution_id}:book:1"] = verdict
            if (answers, status) != (1, ENDS.get(verdict)):
                broken.append(f"round {number}: the log holds {answers} answers, {verdict} led to {status}")
            for word in told & ({"approved", "rejected"} - {verdict}):
                broken.append(f"round {number}: somebody was told {word} although it was {verdict}")
    effects = Ledger(folder / "effects").effects()
    for key in effects.keys() | verdicts.keys():
        if effects[key] != (verdicts.get(key) == "approved"):
            broken.append(f"{key} happened {effects[key]} times although it was {verdicts.get(key)}")
    return Report(won, effects.total(), broken)
