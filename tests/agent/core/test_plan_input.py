"""The form of a plan: defined once, and what models and clients see of it is derived."""

from typing import cast

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core.plan import parse_plan
from planwarden.agent.core.plan_input import CallInput, StepInput, call_schema, plan_schema

Json = dict[str, JsonValue]


def properties_of(schema: JsonValue, *path: str) -> Json:
    """The properties of the object that the path of keywords leads to."""
    node = cast(Json, schema)
    for key in path:
        node = cast(Json, node[key])
    return cast(Json, node["properties"])


@pytest.mark.parametrize("described", [False, True])
def test_the_schema_of_a_plan_has_every_field_and_every_choice(described: bool) -> None:
    """spec: issue, one definition of a plan"""
    plan = plan_schema(described=described)
    step = properties_of(plan, "properties", "todoList", "items")
    assert list(step) == list(StepInput.model_fields)
    call = properties_of(step["toolCalls"], "items")
    assert list(call) == list(CallInput.model_fields)
    assert step["onReject"] == {"type": "string", "enum": ["skip", "stop", "continue"]}
    assert plan["required"] == ["todoList"] and call_schema()["required"] == ["toolName", "arguments"]


def test_only_clients_pay_for_descriptions_and_only_where_a_name_does_not_say_enough() -> None:
    """spec: issue, token limits"""
    step = properties_of(plan_schema(described=True), "properties", "todoList", "items")
    described = [name for name, field in step.items() if isinstance(field, dict) and "description" in field]
    assert described == ["dependencies", "confirms"]
    assert "description" in cast(Json, properties_of(step["toolCalls"], "items")["arguments"])
    plain = properties_of(plan_schema(), "properties", "todoList", "items")
    assert plain["dependencies"] == {"type": "array", "items": {"type": "string"}}


def test_a_refusal_names_every_fault_at_its_place() -> None:
    """ours"""
    document: JsonValue = {
        "goal": "g",
        "todoList": [
            {"id": "a b", "description": "x", "stepTyp": "tool"},
            {"id": "c", "description": "", "toolCalls": [{"toolName": 1, "args": {}}], "onReject": "never"},
            "do it",
        ],
    }
    with pytest.raises(InvalidPlan) as refused:
        parse_plan(document, author="caller", tools={})
    problems = refused.value.details["problems"]
    assert isinstance(problems, list)
    assert [str(problem).split(" ")[0].removesuffix(":") for problem in problems] == [
        "plan",
        "todoList[0]",
        "todoList[1].toolCalls[0]",
        "todoList[0].id",
        "todoList[1].description",
        "todoList[1].toolCalls[0].toolName",
        "todoList[1].onReject",
        "todoList[2]",
    ]
    assert str(problems[1]).startswith("todoList[0] has no key 'stepTyp' (write 'stepType'); it takes id, description,")
