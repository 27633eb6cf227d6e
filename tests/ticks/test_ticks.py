"""A small part of `make ticks`."""

import random
from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.support.slices import first_only
from tests.ticks.__main__ import Campaign


@pytest.mark.slow
@requirement("schedule:once")
@pytest.mark.parametrize("minutes", first_only(8, 80))
def test_ticks_over_two_processes_killed_at_random_start_each_run_once(tmp_path: Path, minutes: int) -> None:
    campaign = Campaign(tmp_path / "ticks", 20, minutes, random.Random(7), life_s=0.2)
    assert campaign.run() == []
    assert len(campaign.expected) == 20 * minutes
