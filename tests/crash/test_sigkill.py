"""kill -9 of real processes that share one file: no effect twice, nothing acknowledged lost, nothing stuck."""

from pathlib import Path

import pytest

from tests.crash.campaign import kill_again_and_again
from tests.crash.scenario import SCENARIOS, undisturbed
from tests.requirements import requirement
from tests.support.slices import first_only

pytestmark = pytest.mark.anyio


@requirement("crash:sigkill")
@pytest.mark.slow
@pytest.mark.parametrize("processes", first_only(4, 12))
async def test_killed_processes_break_nothing(tmp_path: Path, processes: int) -> None:
    expected = await undisturbed(tmp_path / "undisturbed", SCENARIOS["plan"])
    report = await kill_again_and_again(tmp_path, processes, seed=12, expected=expected)
    assert report.broken == []
    assert report.effects > 0 and report.acknowledged > 0
