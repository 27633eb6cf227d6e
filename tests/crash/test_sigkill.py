"""kill -9 of real processes that share one file: no effect twice, nothing acknowledged lost, nothing stuck."""

from pathlib import Path

import pytest

from tests.crash.campaign import kill_again_and_again
from tests.crash.scenario import SCENARIOS, undisturbed
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


@requirement("crash:sigkill")
@pytest.mark.slow
async def test_a_dozen_killed_processes_break_nothing(tmp_path: Path) -> None:
    """spec: issue, SIGKILL of a real process in a loop; `make campaign PART=kills` goes on"""
    expected = await undisturbed(tmp_path / "undisturbed", SCENARIOS["plan"])
    report = await kill_again_and_again(tmp_path, 12, seed=12, expected=expected)
    assert report.broken == []
    assert report.effects > 0 and report.acknowledged > 0
