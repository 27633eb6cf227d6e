"""The form of a plan: defined once, and what models and clients see of it is derived."""

import json
from typing import cast

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_input import CallInput, StepInput, call_schema, plan_schema
from planwarden.agent.core.plan_parser import parse_plan

Json = dict[str, JsonValue]


def properties_of(schema: JsonValue, *path: str) -> Json:
    """The properties of the object that the path of keywords leads to."""
    node = cast(Json, schema)
    for key in path:
        node = cast(Json, node[key])
    return cast(Json, node["properties"])


def test_the_schema_of_a_plan_has_every_field_and_every_choice_and_clients_read_what_a_name_does_not_say() -> None:
    for described in (False, True):
        plan = plan_schema(described=described)
        step = properties_of(plan, "properties", "todoList", "items")
        assert list(step) == list(StepInput.model_fields)
        assert list(properties_of(step["toolCalls"], "items")) == list(CallInput.model_fields)
        assert cast(Json, step["onReject"])["enum"] == ["skip", "stop", "continue"]
        assert plan["required"] == ["todoList"] and call_schema()["required"] == ["toolName", "arguments"]
        # Models of ours pay for no description.
        plain = {name for name, field in step.items() if "description" not in cast(Json, field)}
        named_well = {"id", "description", "toolValidationMode", "maxItems", "maxConcurrent", "onItemFailure"}
        assert plain == (named_well if described else step.keys())


def test_a_models_plan_loses_keys_that_mean_nothing_and_is_refused_for_those_that_mean_others() -> None:
    step: dict[str, JsonValue] = {"id": "a", "description": "find it"}
    plan, warnings = parse_plan({"todoList": [{**step, "title": "x", "note": "y"}]}, author="model", tools={})
    assert len(plan.steps) == 1 and len(warnings) == 1 and "'note', 'title'" in warnings[0]
    with pytest.raises(InvalidPlan, match=r"'required_tools' \(write 'requiredTools'\)"):
        parse_plan({"todoList": [{**step, "required_tools": ["find"]}]}, author="model", tools={})


def test_text_inside_arguments_is_never_read_as_json() -> None:
    arguments: dict[str, JsonValue] = {"text": '{"a": 1}', "more": ["[1]", None]}
    step: JsonValue = {"id": "a", "description": "x", "toolCalls": [{"toolName": "note", "arguments": arguments}]}
    plan, _ = parse_plan({"todoList": [step]}, author="caller", tools={"note": ToolFacts(is_blocking=False)})
    assert plan.steps[0].tool_calls[0].arguments == arguments


@pytest.mark.parametrize("space", ["", " ", "\n", "\t \r"], ids=ascii)
@pytest.mark.parametrize("key", ["todoList", "dependencies", "arguments"])
def test_json_that_was_sent_as_text_is_read_whatever_space_stands_before_it(space: str, key: str) -> None:
    arguments: Json = {"to": "Ann"}
    step: Json = {"id": "a", "description": "Send", "dependencies": []}
    step["toolCalls"] = [{"toolName": "send", "arguments": arguments}]
    plain: Json = {"todoList": [step]}
    tools = {"send": ToolFacts(is_blocking=False)}
    expected = parse_plan(plain, author="caller", tools=tools)
    if key == "todoList":
        sent: Json = {key: space + json.dumps([step])}
    elif key == "dependencies":
        sent = {"todoList": [{**step, key: space + "[]"}]}
    else:
        call: Json = {"toolName": "send", "arguments": space + json.dumps(arguments)}
        sent = {"todoList": [{**step, "toolCalls": [call]}]}
    assert parse_plan(sent, author="caller", tools=tools) == expected
    assert (
        parse_plan({"todoList": [{**step, "onReject": None, "retry": None}]}, author="caller", tools=tools) == expected
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lsit", "list"),
        ("aprove", "approve"),
        ("maxSteps", "max_steps"),
        ("max-step", "max_steps"),
        ("FS_READ_FILES", "fs_read_file"),
        ("mcp__planwarden__show", "show"),
        ("read_file", "fs_read_file"),
        ("zzz", None),
        ("", None),
        ("list" * 100, None),
    ],
)
def test_the_word_that_is_most_alike_is_what_was_meant(word: str, meant: str | None) -> None:
    known = ("list", "show", "approve", "max_steps", "fs_read_file", "fs_write_file")
    assert did_you_mean(word, known) == ("" if meant is None else f" (did you mean {meant!r}?)")
