"""A saved plan from the commands of real hosts."""

from pathlib import Path

import pytest

from tests.clients.installed import Unavailable
from tests.clients.saved_plans import PLAN_HOSTS, RUN, WRITTEN, PlanHost, run_plan_in_host
from tests.clients.stage import Stage

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("host", PLAN_HOSTS, ids=lambda host: host.name)
def test_a_saved_plan_runs_from_the_commands_of_a_host(host: PlanHost, tmp_path: Path) -> None:
    stage = Stage(tmp_path, kills=False)
    try:
        seen = run_plan_in_host(host, stage)
    except Unavailable as error:
        pytest.skip(str(error))
    assert seen.lists_prompts == (host.asks_for is not None)
    assert seen.prompts == ([] if host.asks_for is None else [host.asks_for])
    assert (seen.calls, stage.ledger) == ([RUN], [WRITTEN])
    assert seen.statuses[-1] == "completed" and "completed" in seen.read
