"""How long an execution waits for a provider: as a pure function of its log, and durably in a running engine."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.core.control.decide import AskModel, Order, WaitForModel, decide
from planwarden.agent.core.control.provider_waits import LONGEST_ASKED_S, bound_asked_s, list_outages
from planwarden.agent.core.control.replay import find_replay_fault
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.plan import Plan, PlanStep
from tests import kit
from tests.kit import ScriptedModel, apply, ev, plan
from tests.support.fakes import UnreachableModel
from tests.support.wardens import pass_time

BEGAN = 1_000_000.0
DAY_S = 86_400.0
GOALS = st.sampled_from(["plan", "steps", "synthesis"])


def created(goal: str, patience_s: float) -> ExecutionState:
    """An execution with a prompt to send: for the plan, for two independent steps, or for the final answer."""
    options = ev.Options(synthesize=goal == "synthesis", model_patience_s=patience_s)
    execution = apply(new_execution("e", "t", "ann"), ev.ExecutionCreated(goal="g", options=options), BEGAN)
    if goal == "plan":
        return execution
    steps = tuple(PlanStep(step_id=name, description=name, step_type="reasoning") for name in ("a", "b"))
    execution = apply(execution, ev.PlanAccepted(plan=Plan(steps=steps)), BEGAN)
    if goal == "steps":
        return execution
    for name in ("a", "b"):
        for event in (
            ev.StepStarted(step_id=name),
            ev.ModelReplied(purpose="step", step_id=name, content="done"),
            ev.StepCompleted(step_id=name),
        ):
            execution = apply(execution, event, BEGAN)
    return execution


class Life:
    """An execution whose decisions are carried out, and whose provider fails as often as it is told."""

    def __init__(self, execution: ExecutionState) -> None:
        self.execution, self.begun, self.now = execution, execution, BEGAN
        self.written: list[ev.Recorded] = []
        self.asked_at: list[float] = []

    def record(self, event: ev.Event) -> None:
        self.execution = apply(self.execution, event, self.now)
        self.written.append(ev.Recorded(sequence=self.execution.version, at=self.now, event=event))

    def settle(self) -> list[AskModel]:
        """The prompts to send, after everything else that follows was recorded."""
        while True:
            actions = decide(self.execution)
            prompts = [action for action in actions if isinstance(action, AskModel)]
            moved = False
            for action in actions:
                if isinstance(action, WaitForModel):
                    self.record(ev.Suspended(question=self._wait(action)))
                elif isinstance(action, Order) or (prompts and isinstance(action, ev.ExecutionSuspended)):
                    continue
                else:
                    self.record(action)
                moved = True
            if not moved:
                return prompts

    def _wait(self, action: WaitForModel) -> ev.Question:
        return ev.Question(
            suspension_id=f"q{len(self.written)}",
            kind="wait",
            message="",
            step_id=action.step_id,
            expires_at=action.until,
            on_timeout="approve",
        )

    def fail(self, prompt: AskModel, *, retryable: bool = True, asked_s: float | None = None) -> None:
        self.asked_at.append(self.now)
        failed = ev.ModelFailed(purpose=prompt.purpose, step_id=prompt.step_id, code="model_error", message="no")
        self.record(replace(failed, retryable=retryable, asked_s=asked_s))

    def reply(self, prompt: AskModel) -> None:
        self.record(ev.ModelReplied(purpose=prompt.purpose, step_id=prompt.step_id, content="done"))
        if prompt.purpose == "plan":
            step = PlanStep(step_id="a", description="a", step_type="reasoning")
            self.record(ev.PlanAccepted(plan=Plan(steps=(step,))))

    def wait_for_clock(self) -> None:
        due = min(self.execution.open_suspensions, key=lambda found: found.question.expires_at or 0.0).question
        assert due.expires_at is not None
        self.now = max(self.now, due.expires_at)
        self.record(ev.SuspensionTimedOut(suspension_id=due.suspension_id, outcome="approve"))


@kit.requirement("patience:waits")
def test_the_waits_double_from_a_minute_to_half_an_hour_and_end_with_the_patience() -> None:
    life = Life(created("plan", DAY_S))
    while life.execution.status != "incomplete":
        for prompt in life.settle():
            life.fail(prompt)
        if life.execution.status == "suspended":
            life.wait_for_clock()
    waits = [later - earlier for earlier, later in pairwise(life.asked_at)]
    assert waits[:7] == [60, 120, 240, 480, 960, 1800, 1800] and set(waits[6:-1]) == {1800}
    assert life.asked_at[-1] == BEGAN + DAY_S and 0 < waits[-1] <= 1800
    assert life.execution.exhausted == "modelPatience" and life.execution.active_s == 0


ASKED = {7_200.0: 7_200.0, None: 120.0, 5.0: 240.0, -1.0: 480.0, math.nan: 960.0, math.inf: LONGEST_ASKED_S}
"""The wait after a provider asked for one, failure after failure."""


@kit.requirement("patience:asked")
def test_what_the_provider_asks_for_is_the_least_wait_within_limits_and_lasts_for_one_failure() -> None:
    life = Life(created("plan", DAY_S))
    for asked_s, wait_s in ASKED.items():
        [prompt] = life.settle()
        before = life.now
        life.fail(prompt, asked_s=bound_asked_s(asked_s))
        life.settle()
        life.wait_for_clock()
        assert life.now - before == wait_s


@kit.requirement("patience:waits", "state:total", "replay:real")
@given(GOALS, st.sampled_from([0.0, 30.0, 4_000.0, DAY_S]), st.lists(st.integers(0, 9), max_size=60), st.booleans())
def test_whatever_fails_and_answers_the_execution_waits_goes_on_or_ends_and_never_stands_still(
    goal: str, patience_s: float, luck: list[int], is_cancelled: bool
) -> None:
    life, restarts, draws = Life(created(goal, patience_s)), 3, iter(luck)
    for _ in range(2_000):
        prompts = life.settle()
        status = life.execution.status
        for outage in list_outages(life.execution):
            # A prompt waits, is sent again, or was given up; nobody is asked while it waits.
            found = life.execution.suspensions.get(outage.suspension_id or "")
            assert outage.failed_at >= outage.since and outage.attempts >= 1
            is_asked = any(
                (life.execution.outage if p.step_id is None else life.execution.steps[p.step_id].outage) is outage
                for p in prompts
            )
            assert not (found is not None and found.is_open and is_asked)
        if prompts:
            drawn = next(draws, 9)
            if drawn == 0 and is_cancelled:
                life.record(ev.CancelRequested())
            elif drawn < 6:
                life.fail(prompts[drawn % len(prompts)])
            else:
                life.reply(prompts[drawn % len(prompts)])
        elif status in ("running", "suspended"):
            assert life.execution.open_suspensions, "it stands still"
            life.wait_for_clock()
        elif status == "incomplete" and restarts:
            restarts -= 1
            life.record(ev.ExecutionStarted())
        else:
            break
    assert life.execution.is_finished and not life.execution.open_suspensions
    assert find_replay_fault(life.begun, life.written) is None
    if life.execution.status == "completed":
        assert all(state.status == "completed" for state in life.execution.steps.values())


PLANNED: JsonValue = {
    "when": {"purpose": "plan"},
    "reply": {"plan": {"todoList": [{"id": "a", "description": "note", "requiredTools": ["note"]}]}},
}
SCRIPT: list[JsonValue] = [PLANNED, kit.calls(("note", {"text": "now"})), kit.says("Noted.", "synthesize")]


def unreachable(failures: float, script: list[JsonValue] = SCRIPT) -> UnreachableModel:
    return UnreachableModel(ScriptedModel({"replies": script}), failures=failures)


def patience(seconds: float) -> kit.Settings:
    return kit.Settings(home=Path("/nonexistent"), options=ev.Options(model_patience_s=seconds))


@kit.requirement("patience:waits", "patience:durable")
async def test_every_prompt_of_a_goal_waits_for_its_provider_and_goes_on_where_it_was() -> None:
    clock, ledger, model = kit.ManualClock(), kit.Ledger(), unreachable(2)
    async with kit.warden(ledger, store=(store := kit.MemoryStore(clock)), model=model) as w:
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


@kit.requirement("patience:restart", "patience:said")
@pytest.mark.parametrize("seconds", [0.0, 90.0])
async def test_after_its_patience_it_is_incomplete_and_execute_plan_goes_on_with_what_is_left(seconds: float) -> None:
    clock, ledger = kit.ManualClock(1_800_000_000.0), kit.Ledger()
    model = unreachable(math.inf, [kit.calls(("note", {"text": "now"}))])
    steps = plan(kit.tool_step("a", "note", {"text": "first"}), kit.model_step("b", "note"))
    async with kit.warden(ledger, store=kit.MemoryStore(clock), model=model, settings=patience(seconds)) as w:
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
