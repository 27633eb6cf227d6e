"""Long plans and loops: a change copies few of their steps and calls, and what comes out is a dict, or a tuple."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.core import events as ev
from planwarden.agent.core import long_mapping, long_tuple
from planwarden.agent.core.fold import apply
from planwarden.agent.core.long_mapping import LongMapping, replace_value
from planwarden.agent.core.long_tuple import LongTuple, replace_at
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.state import new_execution
from tests.kit import plan, requirement, tool_step

PART = long_tuple.PART
LENGTHS = st.sampled_from([1, PART - 1, PART, PART + 1, 2 * PART, 1_000])


@given(LENGTHS, st.lists(st.integers(0, 999), max_size=5))
def test_changed_copies_are_those_of_a_dict_and_of_a_tuple(length: int, places: list[int]) -> None:
    assert long_mapping.PART == PART
    values, mapping = (
        replace_at(tuple(range(length)), 0, -1),
        replace_value({f"k{n}": n for n in range(length)}, "k0", -1),
    )
    expected = [-1, *range(1, length)]
    for place in (place % length for place in places):
        before = [*expected]
        older, earlier = values, mapping
        expected[place] -= 1
        values, mapping = (
            replace_at(values, place, expected[place]),
            replace_value(mapping, f"k{place}", expected[place]),
        )
        assert [*older] == before == [*earlier.values()]
    names = [f"k{n}" for n in range(length)]
    assert [*mapping.items()] == [*zip(names, expected, strict=True)] and mapping == dict(
        zip(names, expected, strict=True)
    )
    assert [*mapping] == names and len(mapping) == length and names[-1] in mapping and mapping.get("other") is None
    assert [*values] == expected and len(values) == length and values[-1] == expected[-1]
    assert values[1:PART] == tuple(expected[1:PART]) and values[length:] == ()
    assert values == replace_at(tuple(expected), 0, expected[0]) != replace_at(tuple(expected), 0, 7)
    assert (isinstance(values, LongTuple), isinstance(mapping, LongMapping)) == (length > PART,) * 2
    with pytest.raises(IndexError):
        _ = values[length]
    with pytest.raises(KeyError):
        _ = mapping["other"]


@requirement("loop:large")
@pytest.mark.parametrize(("count", "is_loop"), [(10_000, True), (1_000, False)], ids=["loop", "plan"])
def test_each_event_of_a_long_loop_or_plan_copies_few_of_its_calls_or_steps(count: int, is_loop: bool) -> None:
    each: dict[str, JsonValue] = {**tool_step("s0", "t"), "forEach": {"$from": "a"}, "maxItems": count}
    steps = [tool_step("a", "t"), each] if is_loop else [tool_step(f"s{number}", "t") for number in range(count)]
    parsed, _ = parse_plan(plan(*steps), author="caller", tools={"t": ToolFacts(is_blocking=False)}, max_steps=count)
    events: list[ev.Event] = [ev.ExecutionCreated(), ev.PlanAccepted(plan=parsed), ev.StepStarted(step_id="s0")]
    if is_loop:
        events += [
            ev.LoopBegan(step_id="s0", items=tuple(range(count))),
            *(ev.ToolCallIntended(call_id=f"s0:{number}", arguments={}) for number in range(1, 402)),
        ]
    else:
        events += [ev.StepStarted(step_id=f"s{number}") for number in range(1, 402)]
    execution, copied = new_execution("e", "thread", "ann"), 0
    for number, event in enumerate(events):
        before, execution = execution, apply(execution, event, 1.0)
        if number >= len(events) - 400:
            old, new = ((state.steps["s0"].calls if is_loop else state.steps) for state in (before, execution))
            assert isinstance(old, LongTuple | LongMapping) and isinstance(new, LongTuple | LongMapping)
            known = {id(part) for part in old.parts}
            copied += len(new.parts) + sum(len(part) for part in new.parts if id(part) not in known)
    assert copied <= 400 * (PART + count // PART + 1)
