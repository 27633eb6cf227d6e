"""The calls of a long loop: a change copies few of them, and what comes out is what a tuple would be."""

import pytest
from pydantic import JsonValue

from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.long_tuple import PART, LongTuple, replace_at
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.state import new_execution
from tests.requirements import requirement
from tests.support.wardens import plan, tool_step


@pytest.mark.parametrize("length", [1, PART - 1, PART, PART + 1, 2 * PART, 1_000])
def test_a_changed_copy_has_the_values_of_a_changed_tuple(length: int) -> None:
    values, expected = replace_at(tuple(range(length)), 0, -1), [-1, *range(1, length)]
    assert isinstance(values, tuple) is (length <= PART)
    for place in (length - 1, length // 2, length // 3):
        before, kept = values, [*values]
        values, expected[place] = replace_at(values, place, -place), -place
        assert [*before] == kept
    assert [*values] == expected and len(values) == length and values[-1] == expected[-1]
    assert values[1:PART] == tuple(expected[1:PART]) and values[length:] == ()
    same = replace_at(tuple(expected), 0, expected[0])
    assert values == same and values != replace_at(same, 0, 7)
    with pytest.raises(IndexError):
        _ = values[length]


@requirement("loop:large")
@pytest.mark.parametrize("items", [1_000, 10_000])
def test_each_event_of_a_long_loop_copies_few_of_its_calls(items: int) -> None:
    step: dict[str, JsonValue] = {**tool_step("each", "t"), "forEach": {"$from": "a"}, "maxItems": items}
    parsed, _ = parse_plan(plan(tool_step("a", "t"), step), author="caller", tools={"t": ToolFacts(is_blocking=False)})
    execution = new_execution("e", "thread", "ann")
    begun = (
        ev.ExecutionCreated(),
        ev.PlanAccepted(plan=parsed),
        ev.StepStarted(step_id="each"),
        ev.LoopBegan(step_id="each", items=tuple(range(items))),
        ev.ToolCallIntended(call_id="each:1", arguments={}),
    )
    for event in begun:
        execution = apply(execution, event, 1.0)
    copied = 0
    for number in range(2, 402):
        before = execution.steps["each"].calls
        execution = apply(execution, ev.ToolCallIntended(call_id=f"each:{number}", arguments={}), 1.0)
        after = execution.steps["each"].calls
        assert isinstance(before, LongTuple) and isinstance(after, LongTuple)
        known = {id(part) for part in before.parts}
        copied += len(after.parts) + sum(len(part) for part in after.parts if id(part) not in known)
    assert copied <= 400 * (PART + items // PART + 1)
