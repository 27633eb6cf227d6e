"""Sixteen tasks in each of two processes race for business keys and budgets: one effect a key, no budget exceeded."""

from collections import Counter
from pathlib import Path

import pytest

from tests.race.once_worker import LIMIT, TASKS
from tests.requirements import requirement
from tests.support.full_store import make_url
from tests.support.json_lines import read_lines
from tests.support.processes import Worker
from tests.support.slices import first_only

ROUNDS = 4


@requirement("rules:once", "rules:budget")
@pytest.mark.slow
@pytest.mark.parametrize("database", first_only("postgres", "sqlite"))
def test_two_processes_have_one_effect_a_key_and_never_exceed_a_budget(tmp_path: Path, database: str) -> None:
    url = make_url() if database == "postgres" else f"sqlite:///{tmp_path / 'home' / 'planwarden.db'}"
    workers: list[Worker] = []
    try:
        # One after the other, because the first one makes the tables.
        for _ in range(2):
            workers.append(Worker("tests.race.once_worker", str(tmp_path), url))
            workers[-1].wait_for(1)
            workers[-1].check()
        ended = Counter[str]()
        for number in range(ROUNDS):
            for worker in workers:
                worker.send(["race", number])
            for worker in workers:
                worker.wait_for(number + 2)
                worker.check()
                [found] = worker.lines[number + 1]
                assert isinstance(found, dict)
                ended.update({name: int(str(count)) for name, count in found.items()})
    finally:
        for worker in workers:
            worker.kill()
    effects = [tuple(line) for line in read_lines(tmp_path / "effects")]
    refunds = Counter(name for kind, name, _ in effects if kind == "refund")
    spent = dict.fromkeys(map(str, range(ROUNDS)), 0.0)
    for kind, name, amount in effects:
        if kind == "spend":
            spent[name] += float(str(amount))
    assert refunds == {f"p-{number}-{which}": 1 for number in range(ROUNDS) for which in range(2)}
    assert spent == {str(number): LIMIT for number in range(ROUNDS)}
    calls = 2 * TASKS * ROUNDS
    passed = ROUNDS * (2 + LIMIT // 100)
    assert ended == {
        "completed": passed,
        "duplicate_effect": calls - 2 * ROUNDS,
        "suspended": calls - ROUNDS * (LIMIT // 100),
    }
