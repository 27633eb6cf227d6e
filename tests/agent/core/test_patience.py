"""How long an execution waits for a provider, as a pure function of its log."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from planwarden.agent.core import events as ev
from planwarden.agent.core.decide import AskModel, RecordEvent, WaitForModel, decide
from planwarden.agent.core.fold import apply
from planwarden.agent.core.patience import (
    LONGEST_ASKED_S,
    bound_asked_s,
    list_outages,
)
from planwarden.agent.core.plan import Plan, PlanStep
from planwarden.agent.core.replay import find_replay_fault
from planwarden.agent.core.state import ExecutionState, new_execution
from tests.requirements import requirement

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
        self.execution, self.now = execution, BEGAN
        self.written: list[ev.Recorded] = []
        self.begun = execution
        self.asked_at: dict[str | None, list[float]] = {}
        self._questions = 0

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
                if isinstance(action, RecordEvent) and not (
                    prompts and isinstance(action.event, ev.ExecutionSuspended)
                ):
                    self.record(action.event)
                    moved = True
                elif isinstance(action, WaitForModel):
                    self._wait(action)
                    moved = True
            if not moved:
                return prompts

    def _wait(self, action: WaitForModel) -> None:
        self._questions += 1
        question = ev.Question(
            suspension_id=f"q{self._questions}",
            kind="wait",
            addressee="clock",
            message="",
            step_id=action.step_id,
            expires_at=action.until,
            on_timeout="approve",
        )
        self.record(ev.Suspended(question=question))

    def fail(self, prompt: AskModel, *, retryable: bool = True, asked_s: float | None = None) -> None:
        self.asked_at.setdefault(prompt.step_id, []).append(self.now)
        failed = ev.ModelFailed(
            purpose=prompt.purpose,
            step_id=prompt.step_id,
            code="model_error",
            message="no",
            retryable=retryable,
            asked_s=asked_s,
        )
        self.record(failed)

    def reply(self, prompt: AskModel) -> None:
        self.record(ev.ModelReplied(purpose=prompt.purpose, step_id=prompt.step_id, content="done"))
        if prompt.purpose == "plan":
            step = PlanStep(step_id="a", description="a", step_type="reasoning")
            self.record(ev.PlanAccepted(plan=Plan(steps=(step,))))

    def wait_for_clock(self) -> None:
        """Time passes until the next wait is over."""
        due = min(self.execution.open_suspensions, key=lambda found: found.question.expires_at or 0.0).question
        assert due.expires_at is not None
        self.now = max(self.now, due.expires_at)
        self.record(ev.SuspensionTimedOut(suspension_id=due.suspension_id, outcome="approve"))


@requirement("patience:waits")
def test_the_waits_double_from_a_minute_to_half_an_hour_and_end_with_the_patience() -> None:
    life = Life(created("plan", DAY_S))
    while life.execution.status != "incomplete":
        for prompt in life.settle():
            life.fail(prompt)
        if life.execution.status == "suspended":
            life.wait_for_clock()
    asked = [at - BEGAN for at in life.asked_at[None]]
    waits = [later - earlier for earlier, later in pairwise(asked)]
    assert waits[:7] == [60, 120, 240, 480, 960, 1800, 1800] and set(waits[6:-1]) == {1800}
    assert asked[-1] == DAY_S and 0 < waits[-1] <= 1800
    assert life.execution.exhausted == "modelPatience" and life.execution.active_s == 0


@requirement("patience:asked")
def test_what_the_provider_asks_for_is_the_least_wait_within_limits_and_lasts_for_one_failure() -> None:
    life = Life(created("plan", DAY_S))
    for asked_s, wait_s in (
        (7_200.0, 7_200.0),
        (None, 120.0),
        (5.0, 240.0),
        (-1.0, 480.0),
        (math.nan, 960.0),
        (math.inf, LONGEST_ASKED_S),
    ):
        [prompt] = life.settle()
        before = life.now
        life.fail(prompt, asked_s=bound_asked_s(asked_s))
        life.settle()
        life.wait_for_clock()
        assert life.now - before == wait_s
    life.settle()
    assert life.execution.status == "running"


@requirement("patience:at-once")
@given(GOALS, st.booleans())
def test_a_failure_that_no_wait_can_change_fails_at_once_also_after_a_wait(goal: str, has_waited: bool) -> None:
    life = Life(created(goal, DAY_S))
    if has_waited:
        for prompt in life.settle():
            life.fail(prompt)
        life.settle()
        while life.execution.open_suspensions:
            life.wait_for_clock()
    while prompts := life.settle():
        life.fail(prompts[0], retryable=False)
    assert (life.execution.status, life.execution.error_code) == ("failed", "model_error")


@requirement("patience:waits", "state:total", "replay:real")
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


@requirement("patience:restart")
def test_a_plan_that_was_only_asked_for_is_only_made_when_its_planning_is_started_again() -> None:
    options = ev.Options(model_patience_s=0.0)
    begun = apply(new_execution("e", "t", "ann"), ev.ExecutionCreated(goal="g", options=options, plan_only=True), BEGAN)
    life = Life(begun)
    life.fail(life.settle()[0])
    life.settle()
    life.record(ev.ExecutionStarted())
    life.reply(life.settle()[0])
    life.settle()
    assert life.execution.status == "planned"
    life.record(ev.ExecutionStarted())
    assert life.settle() != []
