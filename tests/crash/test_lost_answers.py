"""A commit whose answer is lost, at every append of a scenario: its caller is told so, and the process goes on."""

from itertools import count
from pathlib import Path

import anyio
import pytest

import planwarden.agent.runtime.run
from planwarden.agent.common.errors import CommitUnknown
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from planwarden.tools.registry import Registry
from tests.crash.scenario import (
    SCENARIOS,
    Acknowledged,
    Person,
    Scenario,
    engine_on,
    scenario_tools,
    undisturbed,
    violations,
)
from tests.requirements import requirement
from tests.support.fakes import EffectLedger, StoreCall, WatchedStore

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


async def start(engine: Engine, scenario: Scenario) -> ExecutionState:
    try:
        return await scenario.create(engine)
    except CommitUnknown:
        [header] = await engine.store.executions(None, 10)
        return await engine.find(header.execution_id)


async def drive(person: Person, execution: ExecutionState) -> None:
    while not execution.is_finished:
        try:
            execution = await person.drive(execution)
        except CommitUnknown:
            execution = await person.engine.find(execution.execution_id)


@requirement("crash:lost-answer")
@pytest.mark.parametrize("name", sorted(SCENARIOS))
async def test_a_lost_answer_to_any_append_repeats_no_effect_stops_nothing_and_asks_nobody(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planwarden.agent.runtime.run, "RETRY_S", 0.001)
    expected = await undisturbed(tmp_path / "undisturbed", SCENARIOS[name])
    for at in count(1):
        clock, ledger, forgetful = ManualClock(), EffectLedger(tmp_path / f"effects {at}"), Forgetful(at)
        store = MemoryStore(clock)
        with anyio.fail_after(60):
            async with engine_on(
                WatchedStore(store, forgetful), Registry(scenario_tools(ledger)), SCENARIOS[name].model()
            ) as engine:
                person = Person(engine, clock, ledger, Acknowledged())
                await drive(person, await start(engine, SCENARIOS[name]))
        [header] = await store.executions(None, 10)
        state = await load_execution(store, header)
        assert violations(person.acknowledged, ledger, {header.execution_id: state}, expected) == []
        assert "reconcile" not in [found.question.kind for found in state.suspensions.values()]
        if not forgetful.has_lost:
            assert at > 5
            return
