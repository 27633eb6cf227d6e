"""kill -9 of real processes that share one home: no effect twice, nothing acknowledged lost, nothing stuck."""

import math
from pathlib import Path

import pytest

from tests.campaign.__main__ import KILLED
from tests.campaign.mishaps import KILLS
from tests.campaign.rounds import run_stage
from tests.requirements import requirement
from tests.support.slices import first_only

pytestmark = pytest.mark.anyio


@requirement("crash:sigkill")
@pytest.mark.slow
@pytest.mark.parametrize("rounds", first_only(1, 4))
async def test_killed_processes_break_nothing(tmp_path: Path, rounds: int) -> None:
    outcomes = await run_stage(tmp_path / "stage", 12, rounds, math.inf, cast=KILLED, mishaps=KILLS)
    assert [breach for outcome in outcomes for breach in outcome.breaches] == []
    assert sum(outcome.effects for outcome in outcomes) > 0
    assert any(outcome.mishaps for outcome in outcomes)
