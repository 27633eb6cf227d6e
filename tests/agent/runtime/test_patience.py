"""Patience with providers in a running engine: durable waits, restarts, cancelling, giving up and beginning again."""

import math
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.agent.core import events as ev
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.agent.runtime import scheduler
from planwarden.server.settings.configuration import Settings, load_settings
from tests.kit import ManualClock, MemoryStore, requirement
from tests.storage.suite import BackEnd
from tests.support.fakes import UnreachableModel
from tests.support.wardens import Ledger, calls, model_step, pass_time, plan, says, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

PLANNED: JsonValue = {
    "when": {"purpose": "plan"},
    "reply": {"plan": {"todoList": [{"id": "a", "description": "note", "requiredTools": ["note"]}]}},
}
SCRIPT: list[JsonValue] = [PLANNED, calls(("note", {"text": "now"})), says("Noted.", "synthesize")]


@pytest.fixture(autouse=True)
def only_turns_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "TICK_S", 3_600.0)


def unreachable(failures: float, script: list[JsonValue] = SCRIPT) -> UnreachableModel:
    return UnreachableModel(ScriptedModel({"replies": script}), failures=failures)


def patience(seconds: float) -> Settings:
    return Settings(home=Path("/nonexistent"), options=ev.Options(model_patience_s=seconds))


@requirement("patience:waits", "patience:durable")
async def test_every_prompt_of_a_goal_waits_for_its_provider_and_goes_on_where_it_was() -> None:
    clock, ledger, model = ManualClock(), Ledger(), unreachable(2)
    async with warden(ledger, store=(store := MemoryStore(clock)), model=model) as w:
        waiting = await w.run_goal("write it down")
        for _purpose in ("plan", "step", "synthesize"):
            for wait_s in (60, 120):
                assert waiting.status == "suspended" and waiting.suspensions == () and waiting.awaiting is None
                header = await store.header(waiting.execution_id)
                assert header is not None and header.owner is None
                assert (await pass_time(w, clock, waiting, wait_s - 1)).status == "suspended"
                waiting = await pass_time(w, clock, waiting, 1)
    assert (waiting.status, waiting.output, ledger.lines) == ("completed", "Noted.", ["note now"])
    assert waiting.usage.model_calls == 3 and set(model.attempts.values()) == {3}


@requirement("patience:restart", "patience:said")
@pytest.mark.parametrize("seconds", [0.0, 90.0])
async def test_after_its_patience_it_is_incomplete_and_execute_plan_goes_on_with_what_is_left(seconds: float) -> None:
    clock, ledger = ManualClock(1_800_000_000.0), Ledger()
    model = unreachable(math.inf, [calls(("note", {"text": "now"}))])
    steps = plan(tool_step("a", "note", {"text": "first"}), model_step("b", "note"))
    async with warden(ledger, store=MemoryStore(clock), model=model, settings=patience(seconds)) as w:
        lost = await w.execute_plan(steps)
        for wait_s, until, attempt in ((60, "08:01:00", 2), (30, "08:01:30", 3)) if seconds else ():
            assert lost.status == "suspended" and lost.next_action == (
                f"It waits for the provider until 2027-01-15T{until}Z, then attempt {attempt}; the last error was "
                f'"the provider cannot be reached ({attempt - 1})". Call get_execution then.'
            )
            lost = await pass_time(w, clock, lost, wait_s)
        assert lost.status == "incomplete" and lost.error is not None and lost.error.code == "model_error"
        times = "3 times" if seconds else "once"
        assert f"asked {times} without an answer" in lost.error.message and "execute_plan" in lost.next_action
        model.failures = 0
        done = await w.execute_plan(thread_id=lost.thread_id)
    assert (done.status, done.execution_id, done.error) == ("completed", lost.execution_id, None)
    assert ledger.lines == ["note first", "note now"]


@requirement("patience:durable")
async def test_an_execution_that_waits_for_its_provider_can_be_cancelled() -> None:
    clock, model = ManualClock(), unreachable(math.inf)
    async with warden(Ledger(), store=(store := MemoryStore(clock)), model=model) as w:
        waiting = await w.run_goal("write it down")
        cancelled = await w.cancel_execution(waiting.thread_id)
        clock.advance(3_600)
        await w.service.engine.tick()
        assert await store.due(10) == () and set(model.attempts.values()) == {1}
    assert cancelled.status == "cancelled"


@requirement("patience:waits")
async def test_a_person_is_asked_while_another_step_waits_and_seconds_do_not_run() -> None:
    clock, ledger, model = ManualClock(), Ledger(), unreachable(1, [calls(("note", {"text": "now"}))])
    steps = plan(
        tool_step("ask", "displayConfirmation", {"action": "Go on?"}), model_step("write", "note", dependencies=[])
    )
    async with warden(ledger, store=MemoryStore(clock), model=model) as w:
        asked = await w.execute_plan(steps, options={"budgets": {"seconds": 30}})
        assert asked.awaiting == "human" and "Another step waits for the provider until" in asked.next_action
        assert statuses(asked) == {"ask": "suspended", "write": "suspended"}
        written = await pass_time(w, clock, asked, 60)
    assert statuses(written) == {"ask": "suspended", "write": "completed"} and ledger.lines == ["note now"]


def test_the_patience_is_read_from_the_settings_and_a_day_by_default(tmp_path: Path) -> None:
    assert load_settings(home=tmp_path, environment={}).options.model_patience_s == 86_400
    (tmp_path / "planwarden.toml").write_text("[execution]\nmodelPatienceS = 0\n")
    assert load_settings(home=tmp_path, environment={}).options.model_patience_s == 0


@requirement("patience:asked", "patience:durable")
@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
async def test_any_process_wakes_what_waits_and_keeps_a_wait_that_the_provider_asked_for(back_end: BackEnd) -> None:
    ledger = Ledger()
    model = UnreachableModel(ScriptedModel({"replies": SCRIPT}), failures=1, asked_s=7_200.0)
    async with warden(ledger, store=back_end.connect(), model=model) as w:
        waiting = await w.run_goal("write it down")
        assert waiting.status == "suspended"
    async with warden(ledger, store=back_end.connect(), model=unreachable(0)) as w:
        assert (await pass_time(w, back_end.clock, waiting, 7_199)).status == "suspended"
        done = await pass_time(w, back_end.clock, waiting, 1)
    assert (done.status, ledger.lines) == ("completed", ["note now"])
