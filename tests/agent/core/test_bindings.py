"""What a call gets: inputs of the run, results of steps, JSON read in text, defaults, and text with values in it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.common.artifact import make_artifact
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.core.binding import pointers
from planwarden.agent.core.binding.bindings import Reference
from planwarden.agent.core.execution.folds.transitions import PART, replace_at
from planwarden.agent.core.execution.references import MAX_REFERENCES, AbsentValue, list_sources, resolve
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.inputs import complete_inputs
from planwarden.agent.core.plan.plan import ToolFacts, plan_to_json
from tests.kit import Json, apply, ev, parse_plan, plan, requirement, tool_step

TOOLS = {"find": ToolFacts(is_blocking=False)}
TEXT = json.dumps({"customers": [{"id": 7, "note": "[1]"}]})


@requirement("references:text")
@pytest.mark.parametrize(
    ("result", "pointer", "parse", "value"),
    [
        (TEXT, "", "json", json.loads(TEXT)),
        (TEXT, "", "", TEXT),
        # Once: what the JSON itself has as text stays text.
        (TEXT, "/customers/0/note", "json", "[1]"),
        # Texts of several calls or blocks are found on the way.
        (["", TEXT], "/1/customers/0/id", "json", 7),
        ({"content": [{"type": "text", "text": TEXT}]}, "/content/0/text/customers/0/id", "json", 7),
    ],
)
def test_json_in_text_is_read_where_the_binding_says_so(
    result: JsonValue, pointer: str, parse: str, value: JsonValue
) -> None:
    assert pointers.follow(result, Reference("find", pointer, parse), pointers.ParsedTexts()) == value
    artifact = make_artifact(json.dumps(result).encode())
    address = pointers.PartAddress(artifact.artifact_id, pointer, parse)
    assert pointers.read_parts(artifact, [address])[address].value == value


@requirement("references:text")
@pytest.mark.parametrize(
    ("result", "pointer", "parse", "why"),
    [
        (TEXT, "/customers", "", 'leads into text, which has no parts; if the text is JSON, add "parse": "json"'),
        (TEXT, "/customers/0/note/0", "json", "leads into text"),
        (TEXT, "/orders", "json", "has nothing there: the object has only 'customers'"),
        ("Dear customer", "/x", "json", "leads to text that cannot be read as JSON: not valid JSON"),
        ('{"a": 1, "a": 2}', "/a", "json", "duplicate key"),
        ({"customers": []}, "/customers", "json", "meets no text that could be read as JSON; leave 'parse' out"),
        (f'"{"x" * pointers.MAX_PARSED_CHARS}"', "", "json", "leads to text that is too large"),
        ([1], "no pointer", "", "is not a JSON pointer"),
        ([1], "/-", "", "has nothing there: the list has 1 entry"),
    ],
)
def test_a_binding_that_leads_nowhere_says_why(result: JsonValue, pointer: str, parse: str, why: str) -> None:
    with pytest.raises(pointers.LeadsNowhere) as reason:
        pointers.follow(result, Reference("find", pointer, parse), pointers.ParsedTexts())
    assert why in str(reason.value)


SCHEMA: Json = {
    "type": "object",
    "required": ["customer"],
    "properties": {"customer": {"type": "string"}, "days": {"type": "integer", "default": 30, "minimum": 1}},
}


def begin(document: Json, *events: ev.Event, inputs: Json | None = None) -> ExecutionState:
    parsed, _ = parse_plan(document, author="caller", tools=TOOLS)
    accepted = ev.PlanAccepted(plan=parsed, inputs=complete_inputs(parsed.inputs, inputs))
    execution = new_execution("e", "t", "ann")
    for event in (ev.ExecutionCreated(), accepted, *events):
        execution = apply(execution, event, 1.0)
    return execution


def after(value: JsonValue) -> ExecutionState:
    """An execution whose step `a` has returned the value, and whose step `b` was skipped."""
    return begin(
        plan(tool_step("a", "find"), tool_step("b", "find", dependencies=[])),
        ev.StepStarted(step_id="a"),
        ev.ToolCallIntended(call_id="a:1", arguments={}),
        ev.ToolReturned(call_id="a:1", value=value),
        ev.StepCompleted(step_id="a"),
        ev.StepSkipped(step_id="b", because="a"),
    )


def put(argument: JsonValue, execution: ExecutionState) -> JsonValue:
    return resolve({"x": argument}, list_sources(execution))["x"]


@requirement("plans:inputs")
def test_a_run_takes_what_it_was_given_and_defaults_for_the_rest() -> None:
    step = tool_step("a", "find", {"who": {"$from": "inputs", "pointer": "/customer"}})
    execution = begin({"inputs": SCHEMA, **plan(step)}, inputs={"customer": "Ann"})
    assert put({"$from": "inputs", "pointer": "/customer"}, execution) == "Ann"
    assert put({"$from": "inputs"}, execution) == {"customer": "Ann", "days": 30}
    assert execution.plan is not None
    assert parse_plan(plan_to_json(execution.plan), author="caller", tools=TOOLS)[0] == execution.plan


@requirement("plans:inputs")
@pytest.mark.parametrize(
    ("schema", "inputs", "why"),
    [
        (SCHEMA, {}, 'inputs: "customer" is a required property'),
        (SCHEMA, {"customer": 1}, "is not of type"),
        (SCHEMA, {"customer": "Ann", "day": 1}, "day"),
        (SCHEMA, {"customer": "A" * pointers.MAX_ARGUMENT_BYTES}, "the inputs are larger than"),
        (None, {"customer": "Ann"}, "takes no inputs"),
        ({"properties": {"day": {"format": "date"}}}, {"day": "2026-13-01"}, 'not a "date"'),
        ({"properties": {"at": {"format": "date-time"}}}, {"at": "tomorrow", "to": "x"}, "date-time"),
        ({"properties": {"to": {"format": "email"}}}, {"to": "x", "at": "y"}, "at"),
    ],
    ids=["missing", "type", "unknown", "large", "none", "date", "time", "mail"],
)
def test_inputs_that_do_not_fit_are_refused_by_name(schema: Json | None, inputs: Json, why: str) -> None:
    with pytest.raises((InvalidArguments, LimitExceeded), match=why) as refused:
        complete_inputs(schema, inputs)
    assert refused.value.message.count("it takes") <= 1


@requirement("plans:inputs")
def test_null_and_json_as_text_are_undone_where_the_schema_of_an_input_refuses_them() -> None:
    kinds: Json = {
        "n": "integer",
        "o": "object",
        "l": "array",
        "s": "string",
        "no": ["integer", "null"],
        "two": ["object"],
    }
    properties: Json = {
        **{name: {"type": kind} for name, kind in kinds.items()},
        "any": {},
        "d": {"type": "string", "default": "x"},
    }
    schema: Json = {"properties": properties}
    nulls: Json = dict.fromkeys(properties)
    assert complete_inputs(schema, nulls) == {"no": None, "any": None, "d": "x"}
    texts: Json = {"o": '{"a": "[1]"}', "l": "[1]", "s": "[1]", "any": "[1]"}
    assert complete_inputs(schema, texts) == {**texts, "o": {"a": "[1]"}, "l": [1], "d": "x"}
    for inputs in ({"n": "5"}, {"o": "a"}, {"o": "[1]"}, {"s": 5}, {"zz": None}):
        with pytest.raises(InvalidArguments):
            complete_inputs(schema, inputs)
    with pytest.raises(InvalidArguments, match="required"):
        complete_inputs({**schema, "required": ["s"]}, {"s": None})


@requirement("plans:default")
def test_a_default_stands_for_what_is_not_there() -> None:
    execution = after({"ids": [1], "none": None, "text": "a"})
    assert put({"$from": "a", "pointer": "/ids/0", "default": 9}, execution) == 1
    assert put({"$from": "a", "pointer": "/ids/1", "default": [9]}, execution) == [9]
    assert put({"$from": "a", "pointer": "/none", "default": 9}, execution) is None
    assert put({"$from": "a", "pointer": "/text/total", "default": 9}, execution) == 9
    assert put({"$from": "b", "default": None}, execution) is None
    absent: list[JsonValue] = [{"$from": "b"}, [{"$from": "a", "pointer": "/no", "default": 1}, {"$from": "b"}]]
    for argument in absent:
        with pytest.raises(AbsentValue):
            put(argument, execution)


@requirement("plans:text")
def test_text_takes_values_without_a_model() -> None:
    execution = after({"name": "Ann", "total": {"eur": 3}, "braces": "{name}"})
    taken: Json = {name: {"$from": "a", "pointer": f"/{name}"} for name in ("name", "total", "braces")}
    text: Json = {"$text": "Dear {name}: {total}, {braces}, {{name}} {name}", "with": taken}
    assert put(text, execution) == 'Dear Ann: {"eur":3}, {name}, {name} Ann'


def test_a_template_cannot_make_much_of_little() -> None:
    for times, why in ((500, "would be larger than"), (MAX_REFERENCES + 1, "more than 1000")):
        with pytest.raises(InvalidArguments, match=why):
            put({"$text": "{a}" * times, "with": {"a": {"$from": "a"}}}, after("x" * 1_000))
    absent: Json = {"$from": "a", "pointer": "/no", "default": "y" * 1_000}
    with pytest.raises(InvalidArguments, match="would be larger than"):
        put(list[JsonValue]([absent] * 300), after({}))


@given(st.sampled_from([1, PART, PART + 1, 1_000]), st.lists(st.integers(0, 999), max_size=5))
def test_changed_copies_of_a_long_tuple_are_those_of_a_tuple(length: int, places: list[int]) -> None:
    expected = [*range(length)]
    values = replace_at(tuple(expected), 0, 0)
    for place in (place % length for place in places):
        older, before = values, [*expected]
        expected[place] -= 1
        values = replace_at(values, place, expected[place])
        assert [*older] == before
    assert [*values] == expected and len(values) == length and values[-1] == expected[-1]
    assert values[1:PART] == tuple(expected[1:PART]) and values[length:] == ()
    assert values == replace_at(tuple(expected), 0, expected[0]) != replace_at(tuple(expected), 0, 7)
