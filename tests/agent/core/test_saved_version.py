"""Whether a log still runs exactly the saved plan that it recorded, as a pure function of it."""

import pytest
from msgspec.structs import replace

from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import Plan, ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.saved_version import PlanVersions, keep_versions
from planwarden.agent.core.state import ExecutionState, new_execution
from tests.requirements import requirement
from tests.support.wardens import plan, tool_step

TOOLS = {"t": ToolFacts(is_blocking=False)}
WEEKLY = ev.PlanVersion(name="weekly", digest="d1")
GREET = ev.UsedPlan(name="greet", digest="d2", place="x", step_ids=("a", "b"))


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
    """spec: plans, settled; any change of the plan asks again"""
    execution = run(*events, saved=saved)
    assert execution.is_as_saved is is_exact


@requirement("plans:exact")
def test_what_goes_on_with_the_same_plan_keeps_its_versions_and_another_one_the_origin_of_unchanged_steps() -> None:
    """spec: plans, retry and fork"""
    uses = replace(ACCEPTED, used_plans=(GREET,))
    source, begun = run(uses), ev.StepStarted(step_id="a")
    assert keep_versions(source, parsed(True)) == PlanVersions(WEEKLY, (GREET,))
    assert keep_versions(run(uses, saved=None), PLAN) == PlanVersions(None, (GREET,))
    assert keep_versions(source, Plan(steps=PLAN.steps[:1])) == PlanVersions(None, (replace(GREET, step_ids=("a",)),))
    # Equal in Python, and another value for the tool.
    assert keep_versions(source, parsed(1)) == PlanVersions(None, (replace(GREET, step_ids=("b",)),))
    assert keep_versions(run(uses, begun, REVISED), PLAN) == PlanVersions(None, (GREET,))
    more = ev.UsedPlan(name="more", digest="d3", place="b", step_ids=("b",))
    assert keep_versions(source, PLAN, (more,)) == PlanVersions(WEEKLY, (replace(GREET, step_ids=("a",)), more))
    assert keep_versions(run(), PLAN) == PlanVersions()
