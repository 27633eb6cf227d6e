"""What a plan may call its steps, and that it is refused with everything that is wrong with it."""

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parser import parse_plan

TOOLS = {"find": ToolFacts(is_blocking=False)}


def _step(step_id: str, tool: str = "find", **extra: JsonValue) -> JsonValue:
    return {"id": step_id, "description": "x", "toolCalls": [{"toolName": tool, "arguments": {}}], **extra}


@pytest.mark.parametrize(
    ("step_id", "named"),
    [("a\0b", "U+0000"), ("a\u202eb", "U+202E"), ("a\u2066b", "U+2066"), ("a\u200bb", "U+200B"), ("\x7f", "U+007F")],
)
def test_an_id_with_a_character_that_nobody_sees_is_refused(step_id: str, named: str) -> None:
    with pytest.raises(InvalidPlan) as refused:
        parse_plan({"todoList": [_step(step_id)]}, author="caller", tools=TOOLS)
    assert named in refused.value.message and refused.value.message.isascii()


def test_a_look_alike_is_accepted_with_a_warning() -> None:
    _, warnings = parse_plan({"todoList": [_step("a"), _step("\uff41"), _step("Łódź")]}, author="caller", tools=TOOLS)
    assert warnings == ("step id '\\uff41' looks like the step 'a', which is another one",)


def test_every_fault_of_a_plan_is_said_at_once() -> None:
    circle = [_step("a", dependencies=["b"]), _step("b", dependencies=["a"])]
    steps = [*circle, _step("a\0"), _step("c", "fnid"), _step("d", dependencies=["nowhere"])]
    with pytest.raises(InvalidPlan) as refused:
        parse_plan({"todoList": steps}, author="caller", tools=TOOLS)
    for said in ("U+0000", "'nowhere'", "in a circle: ", "'fnid' (did you mean 'find'?) in c"):
        assert said in refused.value.message
    problems = refused.value.details["problems"]
    assert isinstance(problems, list) and len(problems) == 3
    assert refused.value.details["unknownTools"] == ["fnid"]


def test_a_plan_of_the_wrong_form_is_refused_with_its_unknown_tools() -> None:
    with pytest.raises(InvalidPlan) as refused:
        parse_plan({"todoList": [_step("c", "fnid"), {"id": 7}]}, author="caller", tools=TOOLS)
    assert "todoList[1]" in refused.value.message and "'fnid'" in refused.value.message
