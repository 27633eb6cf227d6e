"""The steps of a long plan: a change copies few of them, and what comes out is what a dict would be."""

import pytest

from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.long_mapping import PART, LongMapping, replace_value
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.state import new_execution
from tests.support.wardens import plan, tool_step


@pytest.mark.parametrize("length", [1, PART - 1, PART, PART + 1, 2 * PART, 1_000])
def test_a_changed_copy_has_the_values_of_a_changed_dict(length: int) -> None:
    names = [f"k{number}" for number in range(length)]
    expected = dict.fromkeys(names, 0)
    values = replace_value(dict(expected), names[0], 1)
    expected[names[0]] = 1
    assert isinstance(values, LongMapping) is (length > PART)
    for name in (names[-1], names[length // 2], names[length // 3]):
        before, kept = values, dict(values)
        values, expected[name] = replace_value(values, name, 2), 2
        assert dict(before) == kept
    assert [*values.items()] == [*expected.items()] and [*values] == names and len(values) == length
    assert values == expected and expected == values and values != dict.fromkeys(names, 0)
    assert names[-1] in values and "other" not in values and values.get("other") is None
    with pytest.raises(KeyError):
        _ = values["other"]


@pytest.mark.parametrize("count", [500, 2_000])
def test_each_event_of_a_long_plan_copies_few_of_its_steps(count: int) -> None:
    steps = [tool_step(f"s{number}", "t") for number in range(count)]
    parsed, _ = parse_plan(plan(*steps), author="caller", tools={"t": ToolFacts(is_blocking=False)}, max_steps=count)
    execution = new_execution("e", "thread", "ann")
    for event in (ev.ExecutionCreated(), ev.PlanAccepted(plan=parsed), ev.StepStarted(step_id="s0")):
        execution = apply(execution, event, 1.0)
    copied = 0
    for number in range(1, 401):
        before = execution.steps
        execution = apply(execution, ev.StepStarted(step_id=f"s{number}"), 1.0)
        after = execution.steps
        assert isinstance(before, LongMapping) and isinstance(after, LongMapping)
        known = {id(part) for part in before.parts}
        copied += len(after.parts) + sum(len(part) for part in after.parts if id(part) not in known)
    assert copied <= 400 * (PART + count // PART + 1)
