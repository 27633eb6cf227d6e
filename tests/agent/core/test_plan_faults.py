"""What a plan is refused for, in words that show the right form: one row for each fault of one step."""

from typing import cast

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from tests.kit import plan, requirement, tool_step

Json = dict[str, JsonValue]

TOOLS = {
    "find": ToolFacts(is_blocking=False),
    "note": ToolFacts(is_blocking=False),
    "displayConfirmation": ToolFacts(is_blocking=True),
}
FIND = tool_step("find", "find", {"topic": "t"})
LOOK_UP: Json = {"toolName": "find", "arguments": {"topic": {"$from": "item"}}}
PATTERN_BOMB = "(a{1,999}){1,999}"


def note(value: JsonValue) -> Json:
    return {"toolName": "note", "arguments": {"text": value}}


def text(value: JsonValue) -> Json:
    """The step writes that value."""
    return {"toolCalls": [note(value)]}


def when(matches: JsonValue, pointer: str = "/ids") -> Json:
    return {"when": {"value": {"$from": "find", "pointer": pointer}, "matches": matches}}


def loop(**changes: JsonValue) -> Json:
    return {"forEach": [1], **changes}


def item(call: JsonValue, **changes: JsonValue) -> Json:
    """Each item is looked up, and written with the result of that call."""
    return loop(toolCalls=[LOOK_UP, note({"$from": "item", "call": call, "pointer": "/topic"})], **changes)


def refuse(document: JsonValue) -> InvalidPlan:
    with pytest.raises(InvalidPlan) as refused:
        parse_plan(document, author="caller", tools=TOOLS)
    return refused.value


IDS: list[tuple[Json, str]] = [
    ({"id": "a\0b"}, "U+0000"),
    ({"id": "a\u202eb"}, "U+202E"),
    ({"id": "a\u2066b"}, "U+2066"),
    ({"id": "a\u200bb"}, "U+200B"),
    ({"id": "\x7f"}, "U+007F"),
    ({"id": "item", "forEach": [1]}, "stands for something else"),
]
BINDINGS: list[tuple[Json, str]] = [
    (text({"$from": "find", "parse": "yaml"}), "'parse' is 'yaml', but the only value that it takes is \"json\""),
    (text({"$from": "find", "parse": None}), "the only value that it takes"),
    (text({"$from": "find", "path": "/x"}), "unknown key(s) 'path'; it takes '$from', 'pointer', 'parse', 'call'"),
    (text({"$from": ["find"]}), "'$from' must be the id of one step, in text"),
    (text({"$from": "find", "pointer": "x"}), "is not a JSON pointer"),
    (text({"$from": "inputs"}), "unknown step"),
]
TEMPLATES: list[tuple[Json, str]] = [
    (text({"$text": "{a}"}), "'$text' takes 'a', which 'with' does not have"),
    (text({"$text": "x", "with": {"a": {"$from": "find"}}}), "'with' has 'a', which '$text' does not take"),
    (text({"$text": "{a", "with": {}}), "a brace without its partner"),
    (text({"$text": "}", "with": {}}), "a brace without its partner"),
    (text({"$text": 3}), "'$text' must be text"),
    (text({"$text": "Dear {{name}}"}), "'$text' takes no value"),
    (text({"$text": "{a}", "with": []}), "'with' of a '$text' object must be an object"),
    (text({"$text": "{a}", "with": {"a": "literal"}}), "must be a binding"),
    (text({"$text": "{a}", "with": {"a": {"$from": "find", "path": 1}}}), "unknown key(s) 'path'"),
    (text({"$text": "{a}", "wiht": {}}), "unknown key(s) 'wiht'"),
    (text({"$text": "x" * 20_001}), "the limit is 20000"),
]
CONDITIONS: list[tuple[Json, str]] = [
    ({"when": "yes"}, "when"),
    ({"when": {"value": 3, "matches": {}}}, "when"),
    ({"when": {"value": {"$from": "find"}}}, "matches"),
    ({"when": {"value": {"text": "x"}, "matches": {}}}, "'value' must be a binding"),
    ({"when": {"value": {"$from": "nowhere"}, "matches": {}}}, "unknown step"),
    ({"when": {"value": {"$from": "find"}, "matches": {}, "is": 1}}, "has no key 'is'"),
    ({"when": [when({})["when"]] * 21}, "when"),
    (when({"type": "text"}), "'matches' is not a usable JSON Schema"),
    (when({"$ref": "file:///etc/passwd"}), "'matches' has no key '$ref'"),
    (when({"pattern": PATTERN_BOMB}), "not a usable JSON Schema"),
    (when({"$gt": 5}), "when[0]: 'matches' has no key '$gt' (write 'exclusiveMinimum')"),
    (when({">": 5}), "(write 'exclusiveMinimum')"),
    (when({"equals": "t"}), "(write 'const')"),
    (when({"contains": {"not": {"greaterThan": 5}}}), "'not' of 'contains' of 'matches' has no key"),
    (when({"anyOf": [{"minItems": 1}, {"oneOf": []}]}), "'anyOf' of 'matches' has no key 'oneOf'"),
    (when({"properties": {"ids": {"format": "date"}}}, ""), "property 'ids' of 'matches' has no key 'format'"),
    (when({"items": True}), "'items' of 'matches' must be a schema in an object, not true"),
    (when({"minItems": 1, "minimum": 5}), "minItems is for lists and minimum is for numbers"),
    (when({"type": "array", "exclusiveMinimum": 5}), "exclusiveMinimum is for numbers, and its type is array"),
]
LOOPS: list[tuple[Json, str]] = [
    ({"forEach": "many"}, "'forEach' must be a list"),
    ({"forEach": {"$from": "nowhere"}}, "unknown step"),
    ({"forEach": {"$from": "find", "path": 1}}, "unknown key"),
    (loop(forEach=[1, *[2] * 100]), "'forEach' has 101 items, and 'maxItems' is 100"),
    (loop(maxItems=10_001), "maxItems"),
    (loop(maxItems=0), "maxItems"),
    (loop(maxConcurrent=33), "maxConcurrent"),
    (loop(onItemFailure="ignore"), "onItemFailure"),
    (loop(toolCalls=[]), "'forEach' needs 'toolCalls'"),
    (loop(requiredTools=["note", "find"]), "must be in its 'toolCalls'"),
    ({"maxItems": 5}, "maxItems without 'forEach'"),
    (
        loop(toolCalls=[{"toolName": "displayConfirmation", "arguments": {}}], requiredTools=[]),
        "cannot ask once for each item",
    ),
    (text({"$from": "item"}), "unknown step"),
]
ITEM_CALLS: list[tuple[Json, str]] = [
    (item(1), "an earlier call of the same item is 0, counted from 0"),
    (
        loop(toolCalls=[LOOK_UP, LOOK_UP, note({"$from": "item", "call": 9})]),
        '0 to 1, counted from 0: {"$from": "item"',
    ),
    (item(-1), "'call' is -1"),
    (item(10**30), "'call' is 1000"),
    (item("0"), "'call' must be the number of an earlier call"),
    (item(True), "'call' must be the number of an earlier call"),
    (item(None), "'call' must be the number of an earlier call"),
    (loop(toolCalls=[note({"$from": "item", "call": 0}), LOOK_UP]), "no call comes before it"),
    (text({"$from": "find", "call": 0}), "'call' goes with \"item\""),
    (item(0, forEach=None), "has no 'forEach'"),
    (item(0, forEach={"$from": "find", "call": 0}), "only in the arguments of 'toolCalls'"),
    (loop(when={"value": {"$from": "item", "call": 0}, "matches": {}}), "only in the arguments of 'toolCalls'"),
    (
        loop(toolCalls=[LOOK_UP, note({"$text": "{x}", "with": {"x": {"$from": "item", "call": 1}}})]),
        "toolCalls[1]: 'call' is 1",
    ),
]
RETRIES: list[JsonValue] = [
    {"attempts": 1},
    {"attempts": 21},
    {"attempts": 2, "delayS": -1},
    {"attempts": 2, "factor": 0},
    3,
    {},
]
ATTEMPTS: list[tuple[Json, str]] = [({"retry": retry}, "retry") for retry in RETRIES]


@requirement("references:text", "plans:text", "conditions:faults", "loops:faults", "loops:calls", "attempts:wait")
@pytest.mark.parametrize(("change", "why"), [*IDS, *BINDINGS, *TEMPLATES, *CONDITIONS, *LOOPS, *ITEM_CALLS, *ATTEMPTS])
def test_a_step_that_cannot_work_is_refused_with_what_is_wrong(change: Json, why: str) -> None:
    message = refuse(plan(FIND, {**tool_step("b", "note", {"text": "x"}), **change})).message
    assert why in message and message.isascii()


@requirement("plans:inputs")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array"}, "must be the JSON Schema of an object"),
        ({"type": "object", "properties": {"x": {"type": "text"}}}, "not a usable JSON Schema"),
        ({"$ref": "https://example.org/x"}, "not a usable JSON Schema"),
        ({"properties": {"x": {"pattern": "(a" * 50}}}, "not a usable JSON Schema"),
        ({"description": "x" * 70_000}, "inputs is larger than"),
        ("no schema", "inputs"),
    ],
    ids=["list", "type", "reference", "pattern", "size", "text"],
)
def test_a_schema_of_inputs_that_cannot_be_used_is_a_fault_of_the_plan(schema: JsonValue, why: str) -> None:
    assert why in refuse({"inputs": schema, **plan(FIND)}).message


def test_every_fault_of_a_plan_is_said_at_once() -> None:
    circle = [tool_step("a", "find", dependencies=["b"]), tool_step("b", "find", dependencies=["a"])]
    strange = [tool_step("a\0", "find"), tool_step("c", "fnid"), tool_step("d", "find", dependencies=["nowhere"])]
    refused = refuse(plan(*circle, *strange))
    for said in ("U+0000", "'nowhere'", "in a circle: ", "'fnid' (did you mean 'find'?) in c"):
        assert said in refused.message
    assert len(cast(list[str], refused.details["problems"])) == 3 and refused.details["unknownTools"] == ["fnid"]
    # Also when it does not have the form of a plan.
    document: JsonValue = {
        "goal": "g",
        "todoList": [
            {"id": "a b", "description": "x", "stepTyp": "tool"},
            {"id": "c", "description": "", "toolCalls": [{"toolName": 1, "args": {}}], "onReject": "never"},
            "do it",
            tool_step("d", "fnid"),
        ],
    }
    refused = refuse(document)
    problems = cast(list[str], refused.details["problems"])
    assert [problem.split(" ")[0].removesuffix(":") for problem in problems[:-1]] == [
        "plan",
        "todoList[0]",
        "todoList[1].toolCalls[0]",
        "todoList[0].id",
        "todoList[1].description",
        "todoList[1].toolCalls[0].toolName",
        "todoList[1].onReject",
        "todoList[2]",
    ]
    assert problems[1].startswith("todoList[0] has no key 'stepTyp' (write 'stepType'); it takes id, description,")
    assert "'fnid'" in problems[-1]


def test_a_step_id_that_looks_like_another_one_is_accepted_with_a_warning() -> None:
    steps = [tool_step(name, "find") for name in ("a", "\uff41", "Łódź")]
    _, warnings = parse_plan(plan(*steps), author="caller", tools=TOOLS)
    assert warnings == ("step id '\\uff41' looks like the step 'a', which is another one",)


def test_inputs_is_a_reserved_id_only_in_plans_with_inputs() -> None:
    old = plan(tool_step("inputs", "find"), {**tool_step("b", "note"), **text({"$from": "inputs"})})
    parsed, _ = parse_plan(old, author="caller", tools=TOOLS)
    assert parsed.steps[1].dependencies == ("inputs",)
    assert "step id 'inputs' stands for something else" in refuse({"inputs": {"type": "object"}, **old}).message
