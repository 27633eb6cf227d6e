"""Races of sixteen tasks in each of two processes: one winner, one effect a key, no budget exceeded."""

from collections import Counter
from pathlib import Path

import pytest

from tests.harness.ledger import Ledger
from tests.race.decisions import ask_all, open_racers, race_again_and_again
from tests.race.racer import LIMIT, TASKS
from tests.requirements import requirement
from tests.support.full_store import make_url
from tests.support.slices import first_only

ROUNDS = 4


@requirement("race:decision", "store:one-winner")
@pytest.mark.slow
def test_every_question_has_one_winner_and_at_most_one_effect(tmp_path: Path) -> None:
    report = race_again_and_again(tmp_path, 40, seed=40)
    assert report.broken == []
    assert report.won.keys() == {"approved", "rejected", "timed_out"}


@requirement("rules:once", "rules:budget")
@pytest.mark.slow
@pytest.mark.parametrize("database", first_only("postgres", "sqlite"))
def test_two_processes_have_one_effect_a_key_and_never_exceed_a_budget(tmp_path: Path, database: str) -> None:
    ended = Counter[str]()
    with open_racers(tmp_path, make_url() if database == "postgres" else "") as racers:
        for number in range(ROUNDS):
            for counts in ask_all(racers, ["pay", number], ["pay", number]):
                ended.update(counts)
    lines = Ledger(tmp_path / "effects").lines("done")
    refunds = Counter(line.key for line in lines if line.facts["tool"] == "refund")
    spent = Counter[str]()
    for line in lines:
        spent[line.key] += line.facts.get("value", 0)
    assert refunds == {f"p-{number}-{which}": 1 for number in range(ROUNDS) for which in range(2)}
    assert {name: spent[name] for name in map(str, range(ROUNDS))} == dict.fromkeys(map(str, range(ROUNDS)), LIMIT)
    calls = 2 * TASKS * ROUNDS
    assert ended == {
        "completed": ROUNDS * (2 + LIMIT // 100),
        "duplicate_effect": calls - 2 * ROUNDS,
        "suspended": calls - ROUNDS * (LIMIT // 100),
    }
