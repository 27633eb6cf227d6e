"""A commit whose answer is lost, at every append of a scenario: its caller is told so, and the process goes on."""

from itertools import count
from pathlib import Path

import anyio
import pytest

import planwarden.agent.runtime.run
from planwarden.agent.common.errors import CommitUnknown
from planwarden.agent.core.state import ExecutionState
from planwarden.tools.registry import Registry
from tests.crash.scenario import SCENARIOS, scenario_tools, undisturbed, violations
from tests.harness.person import Person
from tests.harness.team import Team, engine_on
from tests.requirements import requirement
from tests.storage.suite import Memory
from tests.support.fakes import StoreCall, WatchedStore

pytestmark = pytest.mark.anyio


class Forgetful:
    """Loses the answer to one append."""

    def __init__(self, at: int) -> None:
        self.has_lost = False
        self._at = at
        self._appends = 0

    async def __call__(self, moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "after"):
            self._appends += 1
            if self._appends == self._at:
                self.has_lost = True
                raise CommitUnknown()


@requirement("crash:lost-answer")
@pytest.mark.parametrize("name", sorted(SCENARIOS))
async def test_a_lost_answer_to_any_append_repeats_no_effect_stops_nothing_and_asks_nobody(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planwarden.agent.runtime.run, "RETRY_S", 0.001)
    expected = await undisturbed(tmp_path / "undisturbed", SCENARIOS[name])
    for at in count(1):
        (folder := tmp_path / str(at)).mkdir()
        team, forgetful = Team(Memory(folder), folder), Forgetful(at)
        tools, watched = Registry(scenario_tools(team.ledger)), WatchedStore(team.store, forgetful)
        with anyio.fail_after(60):
            async with engine_on(watched, tools, SCENARIOS[name].model()) as engine:
                person = Person(engine, team.clock, team.ledger)
                state: ExecutionState | None = None
                while state is None or not state.is_finished:
                    try:
                        state = await person.drive(state or await SCENARIOS[name].create(engine))
                    except CommitUnknown:
                        [header] = await team.store.executions(None, 10)
                        state = await engine.find(header.execution_id)
        state = await team.stored(state)
        assert violations(person.acknowledged, team.ledger, {state.execution_id: state}, expected) == []
        assert "reconcile" not in [found.question.kind for found in state.suspensions.values()]
        if not forgetful.has_lost:
            assert at > 5
            return
