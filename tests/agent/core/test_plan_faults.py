"""What a plan is refused for, in words that show the right form, and what is read as it was meant."""

import json
from collections.abc import Mapping
from typing import cast

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core.plan.plan import ToolFacts, plan_to_json
from tests.kit import ITEM, Json, parse_plan, plan, requirement, tool_step

TOOLS = {
    "find": ToolFacts(is_blocking=False),
    "note": ToolFacts(is_blocking=False),
    "displayConfirmation": ToolFacts(is_blocking=True),
    "files_write": ToolFacts(is_blocking=False, is_gated=True),
}
FIND = tool_step("find", "find", {"topic": "t"})
LOOK_UP: Json = {"toolName": "find", "arguments": {"topic": {"$from": "item"}}}


def note(value: JsonValue) -> Json:
    return {"toolName": "note", "arguments": {"text": value}}


def text(value: JsonValue) -> Json:
    return {"toolCalls": [note(value)]}


def when(matches: JsonValue, pointer: str = "/ids") -> Json:
    return {"when": {"value": {"$from": "find", "pointer": pointer}, "matches": matches}}


def loop(**changes: JsonValue) -> Json:
    return {"forEach": [1], **changes}


def item(call: JsonValue, **changes: JsonValue) -> Json:
    """Each item is looked up, and written with the result of that call."""
    return loop(toolCalls=[LOOK_UP, note({"$from": "item", "call": call, "pointer": "/topic"})], **changes)


def refuse(document: JsonValue, tools: Mapping[str, ToolFacts] = TOOLS) -> InvalidPlan:
    with pytest.raises(InvalidPlan) as refused:
        parse_plan(document, author="caller", tools=tools)
    return refused.value


IN_A_LOOP = '{"$from": "item", "pointer": "/id"} in a step whose \'forEach\' is the list of items'
IDS: list[tuple[Json, str]] = [
    ({"id": "a\0b"}, "U+0000"),
    ({"id": "\x7f"}, "U+007F"),
    ({"id": "item", "forEach": [1]}, "means something else"),
    ({"confirms": ["find"]}, "step 'b' confirms other steps but names no tool that asks a person"),
    ({"requiredTools": ["files_write"]}, "step 'b': only hosts call files_write, through their gate"),
]
BINDINGS: list[tuple[Json, str]] = [
    (text({"$from": "find", "parse": "yaml"}), "'parse' is 'yaml', but the only value that it takes is \"json\""),
    (text({"$from": "find", "path": "/x"}), "has no key 'path'; it takes '$from', 'pointer', 'parse', 'call'"),
    (text({"$from": ["find"]}), "'$from' must be the id of one step, in text"),
    (text({"$from": "find", "pointer": "x"}), "is not a JSON pointer"),
    (text({"$from": "find", "pointer": "/a~1b/~2"}), "'/a~1b/~2' is not a JSON pointer (RFC 6901); write '/a~1b/~02'"),
]
CALLS: list[tuple[Json, str]] = [
    ({"tool": "note", "args": {"text": 1}}, '; write "toolCalls": [{"toolName": "note", "arguments": {"text": 1}}]'),
    ({"toolName": "note", "input": {}}, '; write "toolCalls": [{"toolName": "note", "arguments": {}}]'),
    ({"action": "note", "params": {"a": 1}}, '; write "toolCalls": [{"toolName": "note", "arguments": {"a": 1}}]'),
    ({"action": "note"}, "has no key 'action'; it takes"),
]
AS_TEXT: list[tuple[Json, str]] = [
    (text(' {"$from":"find","pointer":"/ids"}'), "write the object itself instead of a text with its JSON"),
    (text("$from: find/ids"), 'takes nothing; write {"$from": "find", "pointer": "/ids"}'),
]
SIZES: list[tuple[Json, str]] = [
    (text("x" * 262_144), "note: the arguments are larger than 262144 bytes"),
    (text([{"$from": "find"}, "x" * 262_144]), "note: the arguments are larger than 262144 bytes"),
]
TEMPLATES: list[tuple[Json, str]] = [
    (text({"$text": "{a}"}), "'$text' takes 'a', which 'with' does not have"),
    (text({"$text": "{find.x}"}), 'write "with": {"find.x": {"$from": "find", "pointer": "/x"}}, or'),
    (text({"$text": "{a}", "with": {"a": "find.x"}}), 'a binding, such as {"$from": "find", "pointer": "/x"}'),
    (text({"$text": "{a}", "with": {"a": "Ann B. Lee"}}), 'a binding, such as {"$from": "find", "pointer": "/a"}'),
    (text({"$text": "{steps.find.x}"}), '{"steps.find.x": {"$from": "find", "pointer": "/x"}}'),
    (text({"text": "{a}", "with": {"a": {"$from": "find"}}}), 'takes nothing; write {"$text": ..., "with": ...}'),
    (text({"$text": "x", "with": {"a": {"$from": "find"}}}), "'with' has 'a', which '$text' does not take"),
    (text({"$text": "{a", "with": {}}), "a brace without its partner"),
    (text({"$text": 3}), "'$text' must be text"),
    (text({"$text": "{a}", "with": []}), "'with' of a '$text' object must be an object"),
    (text({"$text": "{a}", "with": {"a": "literal"}}), "must be a binding"),
    (text({"$text": "{a}", "with": {"a": {"$from": "find", "path": 1}}}), "has no key 'path'"),
    (text({"$text": "x" * 20_001}), "the limit is 20000"),
    (text({"$text": "x", "with": {}, "x": 1}), "a '$text' object has no key 'x'; it takes '$text' and 'with'"),
]
CONDITIONS: list[tuple[Json, str]] = [
    ({"when": {"value": {"$from": "find"}}}, "matches"),
    ({"when": {"$from": "find", "pointer": "/a"}}, '; write "value": {"$from": "find", "pointer": "/a"}'),
    ({"when": {"value": {"$from": "find"}, "equals": True}}, '; write "matches": {"const": true}'),
    (
        {"when": {"$from": "find", "pointer": "/a", "lessThan": 5}},
        '; write "value": {"$from": "find", "pointer": "/a"}; write "matches": {"exclusiveMaximum": 5}',
    ),
    (
        {"when": {"value": {"$from": "find"}, "equals": {"$from": "find"}}},
        "has no key 'equals' (write 'matches'); it takes value, matches",
    ),
    ({"when": {"value": {"$from": "find"}, "gt": "5"}}, "has no key 'gt'; it takes value, matches; todoList"),
    ({"when": [when({})["when"]] * 21}, "when"),
    (when({"type": "text"}), "'matches' is not a usable JSON Schema"),
    (when({"$ref": "file:///etc/passwd"}), "'matches' has no key '$ref'"),
    (when({"$gt": 5}), "when[0]: 'matches' has no key '$gt' (write 'exclusiveMinimum')"),
    (when({"contains": {"not": {"greaterThan": 5}}}), "'not' of 'contains' of 'matches' has no key"),
    (when({"anyOf": [{"minItems": 1}, {"oneOf": []}]}), "'anyOf' of 'matches' has no key 'oneOf'"),
    (when({"properties": {"ids": {"format": "date"}}}, ""), "property 'ids' of 'matches' has no key 'format'"),
    (when({"items": True}), "'items' of 'matches' must be a schema in an object, not true"),
    ({"when": {"value": {"x": 1}, "matches": {}}}, "'value' must be a binding, such as "),
    (when({"not": {"const": {"$from": "find"}}}), "const of 'not' of 'matches' takes a fixed value, and {"),
    (when({"not": {"enum": ["{{find.ids}}"]}}), "write the value itself, or let a reasoning step compare the two"),
    (when({"minimum": {"$from": "find"}}), "minimum of 'matches' takes a fixed value"),
    (when({"not": {"const": [{"x": {"$text": "{a}"}}]}}), 'and {"$text": "{a}"} takes one from elsewhere'),
    (when({"enum": ["x" * 130_000]}), "more than 2000 values or 128000 characters"),
    ({"when": [when({"enum": [*range(200)]})["when"]] * 10}, "'matches' of all conditions together has more than 2000"),
    (when({"anyOf": [{"pattern": f"^{n}$"} for n in range(65)]}), "has more than 64 patterns"),
    ({"when": [when({"pattern": f"^{n}.{{0,900}}$"})["when"] for n in range(5)]}, "has more than 64 patterns"),
    (when({"minLength": 1, "minItems": 1}), "fits no value: minLength is for text and minItems is for lists"),
    (when({"type": "array", "exclusiveMinimum": 5}), "exclusiveMinimum is for numbers, and its type is array"),
]
LOOPS: list[tuple[Json, str]] = [
    (loop(forEach=[1, *[2] * 100]), "'forEach' has 101 items, and 'maxItems' is 100"),
    (loop(forEach=["x", "x" * 262_144]), "'forEach' leads to a list whose item at index 1 has more than 262144 bytes"),
    (loop(maxItems=10_001), "maxItems"),
    (loop(toolCalls=[]), "'forEach' needs 'toolCalls'"),
    (loop(requiredTools=["note", "find"]), "must be in its 'toolCalls'"),
    ({"maxItems": 5}, "maxItems without 'forEach'"),
    (
        loop(toolCalls=[{"toolName": "displayConfirmation", "arguments": {}}], requiredTools=[]),
        "cannot ask once for each item",
    ),
    (text({"$from": "item", "pointer": "/id"}), f"unknown step 'item'; write {IN_A_LOOP}"),
    (text("$item.id"), f'"$item.id" takes nothing; write {IN_A_LOOP}'),
    (text({"$item": "/id"}), f"takes nothing; write {IN_A_LOOP}"),
    (loop(**text({"$from": "one", "pointer": "/id"})), 'step \'one\'; write {"$from": "item", "pointer": "/id"}'),
    (loop(**text({"$from": "fnd"})), 'step \'fnd\'; write {"$from": "find"} or {"$from": "item"}'),
    (loop(forEach={"$from": "fnd"}), 'step \'fnd\'; write {"$from": "find"}'),
    (text({"$from": "FIND", "pointer": "/id"}), 'step \'FIND\'; write {"$from": "find", "pointer": "/id"}'),
    (loop(forEach="all of them"), "'forEach' must be a list, or a binding to one, such as {"),
]
ITEM_CALLS: list[tuple[Json, str]] = [
    (item(1), "an earlier call of the same item is 0, counted from 0"),
    (
        loop(toolCalls=[LOOK_UP, LOOK_UP, note({"$from": "item", "call": 9})]),
        '0 to 1, counted from 0: {"$from": "item"',
    ),
    (item(True), "'call' must be the number of an earlier call"),
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
RETRIES: list[JsonValue] = [{"attempts": 0}, {"attempts": 2, "delayS": -1}, {"attempts": 2, "factor": 0}, 3, {}]
ATTEMPTS: list[tuple[Json, str]] = [({"retry": retry}, "retry") for retry in RETRIES]


@requirement("references:text", "plans:text", "conditions:faults", "loops:faults", "loops:calls", "attempts:wait")
@pytest.mark.parametrize(
    ("change", "why"),
    [*IDS, *BINDINGS, *CALLS, *AS_TEXT, *SIZES, *TEMPLATES, *CONDITIONS, *LOOPS, *ITEM_CALLS, *ATTEMPTS],
)
def test_a_step_that_cannot_work_is_refused_with_what_is_wrong(change: Json, why: str) -> None:
    message = refuse(plan(FIND, {**tool_step("b", "note", {"text": "x"}), **change})).message
    assert why in message and message.isascii()


@requirement("plans:text")
@pytest.mark.parametrize(
    "change",
    [{"tool": "note", "args": {}}, {"when": {"$from": "find", "lessThan": 5}}, {"when": {"value": {}, "equals": 5}}],
    ids=["call", "condition", "comparison"],
)
def test_a_refusal_that_shows_the_right_form_gives_no_other_advice(change: Json) -> None:
    message = refuse(plan(FIND, {"id": "b", "description": "Note it", **change})).message
    assert "; write " in message and "(write " not in message and "needs 'matches'" not in message


def test_a_plan_without_a_list_of_steps_is_refused_with_the_form_of_one() -> None:
    assert "the plan has no list 'todoList'; send {" in refuse({}).message
    assert "the plan has no key 'todolist' (write 'todoList')" in refuse({"todolist": []}).message
    assert "each step is an entry, and its name is its 'id'" in refuse({"todoList": {"a": FIND}}).message


@requirement("plans:text")
@pytest.mark.parametrize(
    ("step", "extra"),
    [
        ({**text({"$from": "item"}), "foreach": [1]}, {}),
        ({**text({"$from": "inputs", "pointer": "/a"}), "requiredtools": []}, {"inputSchema": {}}),
    ],
    ids=["loop", "inputs"],
)
def test_a_misspelt_key_makes_no_name_of_a_loop_or_of_inputs_unknown(step: Json, extra: Json) -> None:
    refused = refuse({**plan(tool_step("b", "note"), {"id": "c", "description": "x", **step}), **extra})
    assert "has no key" in refused.message and "unknown step" not in refused.message


def test_faults_of_keys_hide_no_fault_of_the_graph() -> None:
    misspelt = {**tool_step("b", "note", {"text": "x"}), "dependsOn": []}
    lost = tool_step("c", "note", {"text": {"$from": "nobody"}}, dependencies=["gone"])
    message = refuse(plan(FIND, misspelt, lost, tool_step("d", "notes", {}))).message
    for fault in ("'dependsOn'", "step 'c' refers to unknown steps: 'gone'", "'nobody'", "there is no tool 'notes'"):
        assert fault in message


@requirement("plans:text")
@pytest.mark.parametrize(
    ("change", "whys"),
    [
        ({"retry": 3, "dependencies": ["gone"]}, ["retry must be an object", "unknown steps: 'gone'"]),
        ({"retry": {"attempts": 0}, **text({"$from": "nobody"})}, ["attempts must be at least 1", "step 'nobody'"]),
        ({"depends_on": ["gone"], "dependencies": None}, ["(write 'dependencies')", "unknown steps: 'gone'"]),
        ({"condition": "find.x > 5"}, ["(write 'when')", "when must be a list"]),
        (
            {"for_each": {"$from": "find", "as": "x"}},
            ["(write 'forEach')", "forEach: a '$from' object has no key 'as'"],
        ),
        (
            {"tool_calls": [{"type": "function", "name": "note", "arguments": "{}"}], "toolCalls": None},
            ["(write 'toolCalls')", 'toolCalls[0] is a call in the form of another API; write {"toolName": "note"'],
        ),
        ({"actions": "Send it", "toolCalls": None, "dependencies": ["gone"]}, ["toolCalls must be", "steps: 'gone'"]),
        ({"tool": "note", "args": {"description": "x"}, "description": None}, ["needs 'description'"]),
    ],
    ids=["retry", "attempts", "dependencies", "condition", "loop", "calls", "text", "described"],
)
def test_a_fault_of_one_key_hides_none_of_what_stands_beside_it_or_under_it(change: Json, whys: list[str]) -> None:
    step: Json = {
        key: value for key, value in {**tool_step("b", "note", {"text": "x"}), **change}.items() if value is not None
    }
    message = refuse(plan(FIND, step)).message
    assert [why for why in whys if why not in message] == []


def test_a_limit_that_cannot_be_read_counts_as_no_other_limit() -> None:
    message = refuse(plan(FIND, tool_step("b", "note", {}, forEach=list[JsonValue]([1] * 150), maxItems="200"))).message
    assert "maxItems must be a whole number" in message and "has 150 items" not in message


def test_a_wrong_key_of_an_accepted_plan_is_never_read_as_the_right_one() -> None:
    step: Json = {"onlyIf": {"value": {"$from": "find"}, "matches": {}}, **{f"a{number}": 1 for number in range(10)}}
    document = plan(FIND, tool_step("b", "note", {}, **step))
    accepted, _ = parse_plan(document, author="model", tools=TOOLS)
    assert accepted.steps[1].when == ()


def test_only_faults_that_are_told_get_advice_because_each_takes_a_look_at_all_names() -> None:
    refused = refuse(
        plan(FIND, tool_step("b", "note", {f"a{number}": take(f"find{number}", "") for number in range(30)}))
    )
    problems = cast("list[str]", (refused.details or {})["problems"])
    assert [("write {" in problem) for problem in problems] == [True] * 20 + [False] * 10


@requirement("plans:inputs")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array"}, "must be the JSON Schema of an object"),
        ({"type": "object", "properties": {"x": {"type": "text"}}}, "not a usable JSON Schema"),
        ({"$ref": "https://example.org/x"}, "not a usable JSON Schema"),
        ({"description": "x" * 70_000}, "inputs is larger than"),
        ("no schema", "inputs"),
    ],
    ids=["list", "type", "reference", "size", "text"],
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
    assert warnings == ("step id '\\uff41' looks like 'a', which is another step",)


def test_inputs_is_a_reserved_id_only_in_plans_with_inputs() -> None:
    old = plan(tool_step("inputs", "find"), {**tool_step("b", "note"), **text({"$from": "inputs"})})
    parsed, _ = parse_plan(old, author="caller", tools=TOOLS)
    assert parsed.steps[1].dependencies == ("inputs",)
    assert "step id 'inputs' means something else" in refuse({"inputs": {"type": "object"}, **old}).message


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
TYPED = {
    "find": ToolFacts(is_blocking=False, returns=FOUND),
    "list": ToolFacts(
        is_blocking=False, returns={"type": "array", "items": {**CUSTOMER, "additionalProperties": False}}
    ),
    "note": ToolFacts(is_blocking=False),
    "requestInput": ToolFacts(is_blocking=True),
}
FINDS, LISTS = tool_step("find", "find"), tool_step("list", "list")
FORM: Json = {"type": "object", "properties": {"email": {"type": "string"}}}
ASKS = tool_step("ask", "requestInput", {"message": "Which address?", "form": FORM})


def noting(value: JsonValue = "x", **extra: JsonValue) -> Json:
    return tool_step("b", "note", {"x": value}, **extra)


def take(step_id: str, pointer: str, **extra: JsonValue) -> Json:
    return {"$from": step_id, "pointer": pointer, **extra}


def judge(step_id: str, pointer: str, matches: Json) -> Json:
    return noting(when={"value": take(step_id, pointer), "matches": matches})


LOOPED = tool_step("loop", "note", {"x": ITEM}, forEach=[1, 2])
WHOLE: Json = {"$text": "{n}", "with": {"n": take("find", "/customer/name/first")}}


@requirement("references:never")
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (noting(take("loop", "/id")), '{"$from": "loop", "pointer": "/id"} leads into a list by the name \'id\''),
        (noting(take("list", "/name", default="none")), "leads into a list by the name 'name'"),
        (
            noting(ITEM, forEach=take("list", "/rows")),
            "by the name 'rows'; write the pointer '' for the list, or an index",
        ),
        (
            noting(ITEM, forEach=take("find", "/ids/rows/0/id")),
            "the pointer '/ids' for the list, or an index, such as '/ids/0'",
        ),
        (noting(take("ask", "/email")), "only 'approved', 'reason', 'modifiedArgs', 'content'; write '/content/email'"),
        (noting(take("ask", "/content/email/0")), "leads into string, which has no parts"),
        (noting(take("find", "/idz")), "leads to nothing: there is no 'idz', only 'ids', 'customer', 'text'"),
        (noting(WHOLE), "leads into string"),
        (noting(take("item", "/id"), forEach=[{"ID": 1}, {"ID": 2}]), "there is no 'id', only 'ID'"),
        (noting(forEach=take("find", "/customer")), "'forEach' needs a list, and"),
        (noting(ITEM, forEach=[1], when={"value": ITEM, "matches": {}}), 'takes the list with "parse": "json"'),
        (noting(take("b", "/x")), "in a circle: b -> b; step 'b' takes a value from itself"),
        (noting(take("c", "/x")), "step 'b' takes a value from 'c', which runs only after it"),
        (judge("find", "/ids", {"type": "string"}), 'the value is a list, never "string"'),
        (judge("find", "/ids", {"exclusiveMinimum": 5}), "when[0] never matches: the value is a list"),
        (judge("find", "/text", {"anyOf": [{"minimum": 1}, {"minItems": 5}]}), "text, and minimum is for numbers"),
        (judge("find", "", {"properties": {"idz": {}}}), "the value never has 'idz'; it has 'ids'"),
        (judge("find", "", {"not": {"properties": {"idz": {}}}}), "the value never has 'idz'; it has 'ids'"),
        (judge("list", "", {"contains": {"required": ["dept"]}}), "'/0' never has 'dept'; it has 'name', 'debt'"),
    ],
)
def test_what_no_run_can_resolve_is_refused_before_it(step: Json, why: str) -> None:
    steps = plan(FINDS, LISTS, ASKS, LOOPED, step, tool_step("c", "note", {"x": 1}, dependencies=["b"]))
    assert why in refuse(steps, TYPED).message


@requirement("references:never")
@pytest.mark.parametrize(
    "step",
    [
        noting({"$ref": "#/definitions/order"}),
        noting({"from": "find"}),
        noting({"text": "old", "with": take("find", "/text")}),
        noting("{{name}}"),
        noting("$5.00"),
        noting(take("find", "/customer/anything")),
        noting(take("find", "/idz", default=None)),
        noting(take("find", "/text/a", parse="json")),
        noting(take("list", "/0/name")),
        noting(take("ask", "/content/mail")),
        noting('{"$text": {"$search": "coffee"}}'),
        noting('{"$from": "somewhere"}'),
        noting("item.json"),
        noting("results.list"),
        noting("find[0]"),
        noting("$items"),
        noting("item.id"),
        # A condition may compare with text that names nothing in the plan.
        judge("find", "/text", {"pattern": "<<find>>"}),
        judge("find", "/text", {"const": "${HOME}"}),
        judge("find", "/text", {"not": {"const": "{{name}}"}}),
        judge("find", "/text", {"enum": ["find[0]"]}),
        # What is excluded may be what the value never is.
        judge("list", "/0", {"not": {"type": "null"}}),
        judge("list", "/0", {"not": {"required": ["error"]}}),
        judge("list", "/0", {"not": {"anyOf": [{"type": "string"}]}}),
    ],
    ids=str,
)
def test_what_may_be_meant_as_it_is_written_is_not_refused(step: Json) -> None:
    parse_plan(plan(FINDS, LISTS, ASKS, tool_step("note", "note"), step), author="caller", tools=TYPED)


@requirement("references:never")
@pytest.mark.parametrize("written", ["find.ids[0].name", "steps.find.result.ids"])
def test_a_path_without_signs_is_refused_in_a_models_plan_alone(written: str) -> None:
    document = plan(FINDS, noting(written, forEach=[1]))
    parse_plan(document, author="caller", tools=TYPED)
    with pytest.raises(InvalidPlan, match=r"takes nothing; write \{.*/ids"):
        parse_plan(document, author="model", tools=TYPED)


def test_a_models_plan_loses_keys_that_mean_nothing_and_is_refused_for_those_that_mean_others() -> None:
    step: Json = {"id": "a", "description": "find it"}
    parsed, warnings = parse_plan(plan({**step, "title": "x", "note": "y"}), author="model", tools={})
    assert len(parsed.steps) == 1 and len(warnings) == 1 and "'note', 'title'" in warnings[0]
    with pytest.raises(InvalidPlan, match=r"'required_tools' \(write 'requiredTools'\)"):
        parse_plan(plan({**step, "required_tools": ["find"]}), author="model", tools={})


@pytest.mark.parametrize("space", ["", "\t \r\n"], ids=ascii)
def test_json_that_was_sent_as_text_is_read_and_never_inside_arguments(space: str) -> None:
    arguments: Json = {"topic": '{"a": 1}', "more": ["[1]", None]}
    step: Json = {**tool_step("a", "find", arguments), "dependencies": []}
    as_text: Json = {"toolName": "find", "arguments": space + json.dumps(arguments)}
    expected, _ = parse_plan(plan(step), author="caller", tools=TOOLS)
    assert expected.steps[0].tool_calls[0].arguments == arguments
    retry: Json = {"attempts": 3, "delayS": 1, "factor": 2, "maxDelayS": 9}
    more: Json = {"onItemFailure": "continue", "expectedOutcome": "a", "toolValidationMode": "advisory", "retry": retry}
    whole, _ = parse_plan(plan({**step, **loop(**more)}), author="caller", tools=TOOLS)
    written = json.loads(json.dumps(plan_to_json(whole)))
    assert parse_plan(written, author="caller", tools=TOOLS)[0] == whole
    assert more.items() <= written["todoList"][0].items()
    sent: list[Json] = [
        {"todoList": space + json.dumps([step])},
        plan({**step, "dependencies": space + "[]"}),
        plan({**step, "toolCalls": [as_text]}),
        plan({**step, "onReject": None, "retry": None}),
    ]
    for document in sent:
        assert parse_plan(document, author="caller", tools=TOOLS)[0] == expected
