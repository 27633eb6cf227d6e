"""What a run is given, values that stand in for absent ones, and text with values in it."""

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.inputs import fill_inputs
from planwarden.agent.core.plan import ToolFacts, plan_to_json
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.pointers import MAX_ARGUMENT_BYTES
from planwarden.agent.core.references import MAX_REFERENCES, AbsentValue, list_sources, resolve
from planwarden.agent.core.state import ExecutionState, new_execution
from tests.requirements import requirement
from tests.support.wardens import plan, tool_step

Json = dict[str, JsonValue]

TOOLS = {"find": ToolFacts(is_blocking=False)}
SCHEMA: Json = {
    "type": "object",
    "required": ["customer"],
    "properties": {"customer": {"type": "string"}, "days": {"type": "integer", "default": 30, "minimum": 1}},
}


def given(document: Json, inputs: Json | None = None) -> ExecutionState:
    """An execution of the plan that was given the inputs; the first step has returned a list."""
    parsed, _ = parse_plan(document, author="caller", tools=TOOLS)
    events: list[ev.Event] = [
        ev.ExecutionCreated(),
        ev.PlanAccepted(plan=parsed, inputs=fill_inputs(parsed.inputs, inputs)),
    ]
    execution = new_execution("e", "t", "ann")
    for event in events:
        execution = apply(execution, event, 1.0)
    return execution


def after(value: JsonValue) -> ExecutionState:
    """An execution whose step `a` has returned the value, and whose step `b` was skipped."""
    execution = given(plan(tool_step("a", "find"), tool_step("b", "find") | {"dependencies": []}))
    for event in (
        ev.StepStarted(step_id="a"),
        ev.ToolCallIntended(call_id="a:1", arguments={}),
        ev.ToolReturned(call_id="a:1", value=value),
        ev.StepCompleted(step_id="a"),
        ev.StepSkipped(step_id="b", because="a"),
    ):
        execution = apply(execution, event, 2.0)
    return execution


def put(argument: JsonValue, execution: ExecutionState) -> JsonValue:
    return resolve({"x": argument}, list_sources(execution))["x"]


@requirement("plans:inputs")
def test_a_run_takes_what_it_was_given_and_defaults_for_the_rest() -> None:
    document: Json = {
        "inputs": SCHEMA,
        **plan(tool_step("a", "find", {"who": {"$from": "inputs", "pointer": "/customer"}})),
    }
    execution = given(document, {"customer": "Ann"})
    assert put({"$from": "inputs", "pointer": "/customer"}, execution) == "Ann"
    assert put({"$from": "inputs"}, execution) == {"customer": "Ann", "days": 30}
    parsed, _ = parse_plan(document, author="caller", tools=TOOLS)
    assert parse_plan(plan_to_json(parsed), author="caller", tools=TOOLS)[0] == parsed


@requirement("plans:inputs")
@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({}, 'inputs: "customer" is a required property'),
        ({"customer": 1}, "is not of type"),
        ({"customer": "Ann", "day": 1}, "day"),
        ({"customer": "Ann", "days": 0}, "0 is less than the minimum of 1"),
        ({"customer": "A" * MAX_ARGUMENT_BYTES}, "the inputs are larger than"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(inputs: Json, why: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        fill_inputs(SCHEMA, inputs)
    assert why in refused.value.message


def test_hostile_inputs_are_refused() -> None:
    deep: JsonValue = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(LimitExceeded):
        fill_inputs(SCHEMA, {"customer": deep})
    with pytest.raises(InvalidArguments, match="takes no inputs"):
        fill_inputs(None, {"customer": "Ann"})
    assert fill_inputs({"type": "object", "additionalProperties": True}, {"any": 1}) == {"any": 1}


@requirement("plans:default")
def test_a_default_stands_for_what_is_not_there() -> None:
    execution = after({"ids": [1], "none": None})
    assert put({"$from": "a", "pointer": "/ids/0", "default": 9}, execution) == 1
    assert put({"$from": "a", "pointer": "/ids/1", "default": [9]}, execution) == [9]
    assert put({"$from": "a", "pointer": "/none", "default": 9}, execution) is None
    assert put({"$from": "b", "default": None}, execution) is None
    with pytest.raises(AbsentValue):
        put({"$from": "b"}, execution)
    with pytest.raises(AbsentValue):
        put([{"$from": "a", "pointer": "/no", "default": 1}, {"$from": "a", "pointer": "/no"}], execution)


@requirement("plans:text")
def test_text_takes_values_without_a_model() -> None:
    execution = after({"name": "Ann", "total": {"eur": 3}, "braces": "{name}"})
    taken: Json = {name: {"$from": "a", "pointer": f"/{name}"} for name in ("name", "total", "braces")}
    text: Json = {"$text": "Dear {name}: {total}, {braces}, {{name}} {name}", "with": taken}
    assert put(text, execution) == 'Dear Ann: {"eur":3}, {name}, {name} Ann'


def test_a_template_cannot_make_much_of_little() -> None:
    execution = after("x" * 1_000)
    with pytest.raises(InvalidArguments, match="would be larger than"):
        put({"$text": "{a}" * 500, "with": {"a": {"$from": "a"}}}, execution)
    with pytest.raises(InvalidArguments, match="more than 1000"):
        put({"$text": "{a}" * (MAX_REFERENCES + 1), "with": {"a": {"$from": "a"}}}, execution)
    with pytest.raises(InvalidArguments, match="would be larger than"):
        absent: Json = {"$from": "a", "pointer": "/no", "default": "y" * 1_000}
        put(list[JsonValue]([absent] * 300), after({}))
