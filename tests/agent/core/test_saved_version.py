"""Whether a log still runs exactly the saved plan that it recorded, as a pure function of it."""

import pytest

from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import Plan, ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.saved_version import keep_version
from planwarden.agent.core.state import ExecutionState, new_execution
from tests.requirements import requirement
from tests.support.wardens import plan, tool_step

TOOLS = {"t": ToolFacts(is_blocking=False)}
WEEKLY = ev.PlanVersion(name="weekly", digest="d1")


def parsed(value: bool | int) -> Plan:
    found, _ = parse_plan(plan(tool_step("a", "t", {"x": value}), tool_step("b", "t")), author="caller", tools=TOOLS)
    return found


PLAN = parsed(True)


def run(*events: ev.Event, saved: ev.PlanVersion | None = WEEKLY) -> ExecutionState:
    state = new_execution("e1", "thread", "ann")
    for event in (ev.ExecutionCreated(saved_plan=saved), *events):
        state = apply(state, event, 1.0)
    return state


ACCEPTED, REVISED = ev.PlanAccepted(plan=PLAN), ev.PlanRevised(step_id="a", plan=PLAN, moved=("b",))


@requirement("plans:exact")
@pytest.mark.parametrize(
    ("events", "saved", "is_exact"),
    [
        ((ACCEPTED,), WEEKLY, True),
        ((ACCEPTED, ev.StepStarted(step_id="a")), WEEKLY, True),
        ((), WEEKLY, False),
        ((ACCEPTED,), None, False),
        # Also one that changes nothing: nobody has to find out whether two plans do the same.
        ((ACCEPTED, ev.StepStarted(step_id="a"), REVISED), WEEKLY, False),
    ],
)
def test_only_the_accepted_plan_of_a_saved_one_that_nobody_revised_is_that_version(
    events: tuple[ev.Event, ...], saved: ev.PlanVersion | None, is_exact: bool
) -> None:
    execution = run(*events, saved=saved)
    assert execution.is_as_saved is is_exact


@requirement("plans:exact")
def test_what_goes_on_with_the_same_plan_keeps_its_version() -> None:
    source = run(ACCEPTED)
    assert keep_version(source, parsed(True)) == WEEKLY
    assert keep_version(source, Plan(steps=PLAN.steps[:1])) is None
    # Equal in Python, and another value for the tool.
    assert keep_version(source, parsed(1)) is None
    assert keep_version(run(ACCEPTED, ev.StepStarted(step_id="a"), REVISED), PLAN) is None
    assert keep_version(run(), PLAN) is None
