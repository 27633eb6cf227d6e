"""Approve, reject and time-out race from sixteen tasks in each of two processes: one winner, at most one effect."""

from pathlib import Path

import pytest

from tests.race.campaign import race_again_and_again
from tests.requirements import requirement


@requirement("race:decision", "store:one-winner")
@pytest.mark.slow
def test_every_question_has_one_winner_and_at_most_one_effect(tmp_path: Path) -> None:
    report = race_again_and_again(tmp_path, 40, seed=40)
    assert report.broken == []
    assert report.won.keys() == {"approved", "rejected", "timed_out"}
