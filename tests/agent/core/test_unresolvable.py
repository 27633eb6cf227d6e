"""Plans whose bindings and conditions come to nothing in any run are refused, with what to write instead."""

import json

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from tests.kit import plan, requirement, tool_step

Json = dict[str, JsonValue]

CUSTOMER: Json = {"type": "object", "properties": {"name": {"type": "string"}, "debt": {"type": "number"}}}
FOUND: Json = {
    "type": "object",
    "properties": {
        "ids": {"type": "array", "items": {"type": "integer"}},
        "customer": CUSTOMER,
        "text": {"type": "string"},
    },
    "additionalProperties": False,
}
TOOLS = {
    "find": ToolFacts(is_blocking=False, returns=FOUND),
    "list": ToolFacts(
        is_blocking=False, returns={"type": "array", "items": {**CUSTOMER, "additionalProperties": False}}
    ),
    "note": ToolFacts(is_blocking=False),
}
FIND, LIST = tool_step("find", "find"), tool_step("list", "list")
ITEM: Json = {"$from": "item"}


def note(value: JsonValue = "x", **extra: JsonValue) -> Json:
    return tool_step("b", "note", {"x": value}, **extra)


def take(step_id: str, pointer: str, **extra: JsonValue) -> Json:
    return {"$from": step_id, "pointer": pointer, **extra}


def judge(step_id: str, pointer: str, matches: Json) -> Json:
    return note(when={"value": take(step_id, pointer), "matches": matches})


LOOP = tool_step("loop", "note", {"x": ITEM}, forEach=[1, 2])


WHOLE: Json = {"$text": "{n}", "with": {"n": take("find", "/customer/name/first")}}


@requirement("references:never")
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (note(take("loop", "/id")), '{"$from": "loop", "pointer": "/id"} leads into a list by the name \'id\''),
        (note(take("loop", "/id")), "by the name 'id'; write a place, such as /0"),
        (note(take("list", "/name", default="none")), "leads into a list by the name 'name'"),
        (note(take("find", "/idz")), "leads to nothing: there is no 'idz', only 'ids', 'customer', 'text'"),
        (note(WHOLE), "leads into string"),
        (note(take("item", "/nmae"), forEach=take("list", "")), "there is no 'nmae', only 'name', 'debt'"),
        (note(take("item", "/id"), forEach=[{"ID": 1}, {"ID": 2}]), "there is no 'id', only 'ID'"),
        (note(take("item", "/id"), forEach=["a", "b"]), "leads into string, which has no parts"),
        (note(forEach=take("find", "/customer")), "'forEach' needs a list, and"),
        (note(ITEM, forEach=[1], when={"value": ITEM, "matches": {}}), "is known in 'toolCalls' only"),
        (note(take("b", "/x")), "in a circle: b -> b; step 'b' takes a value from itself"),
        (note(take("c", "/x")), "step 'b' takes a value from 'c', which runs only after it"),
        (judge("find", "/ids", {"exclusiveMinimum": 5}), "when[0] never matches: the value is a list"),
        (judge("find", "/customer/debt", {"minLength": 1}), "minLength is for text"),
        (judge("find", "/text", {"minimum": 1}), "the value is text, and minimum is for numbers"),
        (judge("find", "/text", {"anyOf": [{"minimum": 1}, {"minItems": 5}]}), "text, and minimum is for numbers"),
        (judge("find", "", {"properties": {"idz": {}}}), "the value never has 'idz'; it has 'ids'"),
        (judge("list", "", {"contains": {"required": ["dept"]}}), "'/0' never has 'dept'; it has 'name', 'debt'"),
        (judge("loop", "", {"required": ["id"]}), "the value is a list, and required is for objects"),
    ],
)
def test_what_no_run_can_resolve_is_refused_before_it(step: Json, why: str) -> None:
    assert why in refuse(plan(FIND, LIST, LOOP, step, tool_step("c", "note", {"x": 1}, dependencies=["b"])))


@requirement("references:never")
@pytest.mark.parametrize(
    ("value", "right"),
    [
        ({"$from": "find.ids"}, take("find", "/ids")),
        ({"$from": "steps.find.result.ids[0]"}, take("find", "/ids/0")),
        ({"$from": "find.customer", "pointer": "/name"}, take("find", "/customer/name")),
        ({"$ref": "find.ids"}, take("find", "/ids")),
        ({"$ref": "#/find/ids"}, take("find", "/ids")),
        ({"from": "find", "pointer": "/ids"}, take("find", "/ids")),
        ({"step": "find", "path": "$.ids"}, take("find", "/ids")),
        ({"$item": "name"}, take("item", "/name")),
        ({"$item": ""}, {"$from": "item"}),
        ({"$step": "find", "path": "/ids"}, take("find", "/ids")),
        ({"$result": "find.ids"}, take("find", "/ids")),
        ("{{steps.find.ids}}", take("find", "/ids")),
        ("{{ find.output.ids }}", take("find", "/ids")),
        ("${find.ids}", take("find", "/ids")),
        ("{{item.name}}", take("item", "/name")),
        ("$find.ids", take("find", "/ids")),
        ("<<find.ids>>", take("find", "/ids")),
        (["{{inputs.who}}"], take("inputs", "/who")),
    ],
    ids=str,
)
def test_a_binding_of_another_language_is_refused_with_the_right_one(value: JsonValue, right: Json) -> None:

    step = note(value, forEach=[{"name": "a"}], dependencies=["find"])
    inputs: Json = {"properties": {"who": {}}}
    assert f"write {json.dumps(right)}" in refuse({**plan(FIND, step), "inputs": inputs})


@requirement("references:never")
@pytest.mark.parametrize(
    "value",
    [
        {"$ref": "#/definitions/order"},
        {"from": "find"},
        {"from": "ann", "path": "/x"},
        {"step": "find", "count": 3},
        "{{name}}",
        "$5.00",
        "${HOME}",
        "the find.ids of today",
        take("find", "/customer/anything"),
        take("find", "/idz", default=None),
        take("find", "/text/a", parse="json"),
        take("list", "/0/name"),
        take("note", "/whatever/it/is"),
    ],
    ids=str,
)
def test_what_may_be_meant_as_it_is_written_is_not_refused(value: JsonValue) -> None:
    parse_plan(plan(FIND, LIST, tool_step("note", "note"), note(value)), author="caller", tools=TOOLS)


def refuse(document: JsonValue) -> str:
    with pytest.raises(InvalidPlan) as refused:
        parse_plan(document, author="caller", tools=TOOLS)
    return refused.value.message
