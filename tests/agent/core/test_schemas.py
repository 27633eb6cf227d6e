"""Values against schemas: literal arguments around what is bound, and what checking may cost at most."""

import re
from collections.abc import Collection, Sequence
from typing import cast

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.binding.bindings import Path
from planwarden.agent.core.plan.checks.steps import MAX_LISTED
from planwarden.agent.core.plan.checks.tools import CHECK_LIMIT, WrittenCall, find_argument_faults
from planwarden.agent.core.plan.plan import ToolFacts
from tests.kit import Json, parse_plan, plan, requirement, tool_step

BOUND: Json = {"$from": "a", "pointer": "/x"}
ORDER: Json = {
    "type": "object",
    "required": ["to", "lines"],
    "additionalProperties": False,
    "properties": {
        "to": {"type": "string", "minLength": 3},
        "amount": {"type": "integer", "minimum": 1},
        "kind": {"enum": ["letter", "parcel"]},
        "box": {"anyOf": [{"$ref": "#/$defs/Box"}, {"type": "null"}]},
        "lines": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Line"}},
        "tags": {"type": "array", "uniqueItems": True},
    },
    "if": {"properties": {"kind": {"const": "parcel"}}, "required": ["kind"]},
    "then": {"required": ["box"]},
    "$defs": {
        "Box": {"type": "object", "required": ["width"], "properties": {"width": {"type": "number"}, "label": {}}},
        "Line": {"type": "object", "properties": {"text": {"type": "string"}, "bold": {"type": "boolean"}}},
    },
}


def facts(*schemas: Json, names: Sequence[str] = ("send",)) -> dict[str, ToolFacts]:
    return {
        name: ToolFacts(is_blocking=False, check=Schema(schema).find_certain_faults)
        for name, schema in zip(names, schemas, strict=True)
    }


def problems_of(*arguments: Json, schema: Json = ORDER) -> list[str]:
    """What the plan with these calls is refused for; empty if it is accepted."""
    steps = [tool_step("a", "find"), *(tool_step(f"b{n}", "send", given) for n, given in enumerate(arguments))]
    try:
        parse_plan(plan(*steps), author="caller", tools=facts(schema, {}, names=("send", "find")))
    except InvalidPlan as refused:
        assert refused.message.startswith("nothing of this has run: ") and "get_tool_schemas" in refused.message
        return [str(problem) for problem in cast(list[JsonValue], refused.details["problems"])]
    return []


@requirement("plan:literals")
def test_every_fault_is_named_at_once_with_step_tool_path_and_what_is_wanted() -> None:
    found = problems_of(
        {"to": 5, "lines": [{"text": "x", "bold": "yes"}], "kind": "box", "subject": "Hello"},
        {"amount": 0, "box": {"width": "wide"}},
    )
    names = "'to', 'amount', 'kind', 'box', 'lines', 'tags'"
    first = [
        '/kind: "box" is not one of "letter" or "parcel"',
        '/lines/0/bold: "yes" is not of type "boolean"',
        '/to: 5 is not of type "string"',
        f"Additional properties are not allowed ('subject' was unexpected); it takes {names}",
    ]
    second = [
        "/amount: 0 is less than the minimum of 1",
        '/box/width: "wide" is not of type "number"',
        '"to" is a required property',
        '"lines" is a required property',
    ]
    expected = [f"step 'b{n}', send: {fault}" for n, faults in enumerate((first, second)) for fault in faults]
    assert sorted(found) == sorted(expected)


@requirement("plan:literals")
@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"to": BOUND, "lines": BOUND, "kind": BOUND, "tags": [BOUND, BOUND, None]}, None),
        ({"to": BOUND, "lines": [{"text": BOUND}], "box": {"width": BOUND}, "kind": "parcel"}, None),
        ({"to": BOUND, "lines": []}, "/lines: [] has less than 1 item"),
        ({"to": BOUND, "lines": [{"text": BOUND, "bold": 1}]}, '/lines/0/bold: 1 is not of type "boolean"'),
        ({"to": BOUND, "lines": BOUND, "subject": BOUND}, "'subject' was unexpected"),
        ({"to": BOUND, "lines": BOUND, "amount": None}, '/amount: null is not of type "integer"'),
        ({"to": BOUND, "lines": BOUND, "box": {"label": BOUND}}, '/box: "width" is a required property'),
        ({"to": BOUND, "lines": {"0": BOUND}}, '/lines: {"0":null} is not of type "array"'),
    ],
)
def test_what_is_bound_is_skipped_and_everything_around_it_is_checked(arguments: Json, fault: str | None) -> None:
    found = problems_of(arguments)
    assert found == [] if fault is None else len(found) == 1 and fault in found[0]


CHOICE: Json = {
    "oneOf": [
        {"required": ["n"], "properties": {"n": {"type": "integer"}}, "additionalProperties": False},
        {"required": ["s"], "properties": {"s": {"enum": ["x", ["y"]]}}, "unevaluatedProperties": False},
        {"required": ["n", "d"], "dependentRequired": {"d": ["e"]}, "properties": {"e": {"not": {"const": 1}}}},
    ],
    "anyOf": [{"properties": {"b": {"$ref": "#/$defs/Box"}}}, {"required": ["l"]}],
    "propertyNames": {"maxLength": 2},
    "$defs": {"Box": {"type": "object", "required": ["w"], "properties": {"w": {"type": "number"}}}},
}


@requirement("plan:literals")
@pytest.mark.parametrize(
    "arguments",
    [
        {"n": BOUND},
        {"s": BOUND},
        {"s": [BOUND]},
        {"n": 1, "d": BOUND, "e": BOUND},
        {"n": BOUND, "d": None, "e": True, "b": BOUND},
        {"n": 1, "d": None, "e": False, "b": {"w": BOUND, "l": None}},
    ],
)
def test_arguments_that_may_fit_are_never_refused_whatever_of_them_is_bound(arguments: Json) -> None:
    assert problems_of(arguments, schema=CHOICE) == []


@requirement("plan:literals")
@pytest.mark.parametrize(
    ("arguments", "times", "faults"),
    [
        ({"to": BOUND, "lines": [{"text": "x" * 200, "bold": True} for _ in range(20)]}, 2_500, 0),
        ({"to": "abc", "lines": [{"text": str(number), "bold": BOUND} for number in range(5_000)]}, 50, 0),
        ({"to": "me", "lines": [{"bold": 1} for _ in range(20)]}, 2_500, MAX_LISTED),
    ],
    ids=["many", "heavy", "wrong"],
)
def test_checking_the_largest_plans_takes_bounded_work(arguments: Json, times: int, faults: int) -> None:
    check, units = Schema(ORDER).find_certain_faults, list[int]()

    def count(value: Json, unknown: Collection[Path], limit: int) -> tuple[tuple[str, ...], int]:
        found, work = check(value, unknown, limit)
        units.append(work)
        return found, work

    tools = {"send": ToolFacts(is_blocking=False, check=count)}
    assert len(find_argument_faults([WrittenCall("a", "send", arguments)] * times, tools)) == faults
    # Ten units take a microsecond. The last check may go on for as long as all before it.
    assert sum(units) < 2 * CHECK_LIMIT


def repeat(value: JsonValue, times: int) -> list[JsonValue]:
    return [value] * times


NODE: Json = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "default": 1},
        "next": {"anyOf": [{"$ref": "#/definitions/Node"}, {"type": "null"}], "default": None},
    },
}
KINDS: Json = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "properties": {
        "list": {"items": {"$ref": "#/definitions/Node"}},
        "pair": {"type": "array", "items": [{"type": "integer"}, {"$ref": "#/definitions/Node"}]},
        "map": {"additionalProperties": {"oneOf": [{"$ref": "#/definitions/Node"}, {"type": ["string", "null"]}]}},
        "both": {"allOf": [{"properties": {"a": {"default": 1}}}, {"properties": {"b": {"default": {"c": 2}}}}]},
        "either": {"anyOf": [{"properties": {"a": {"default": 1}}}, {"properties": {"b": {"default": 2}}}]},
        "again": {"properties": {"child": {"$ref": "#/properties/again", "default": {}}}},
        "wrong": {"properties": {"name": {"type": "string", "default": None}, "a": {"default": 1}}},
        "odd": {"properties": {"name": {"enum": ["x"], "default": "y"}}},
        "full": {"properties": {"a": {"default": 1}}, "maxProperties": 1},
    },
    "definitions": {"Node": NODE},
}
FULL_NODE: Json = {"size": 1, "next": None}
COMPLETED: list[tuple[Json, Json]] = [
    ({}, {}),
    ({"list": [{}, {"size": 2}]}, {"list": [FULL_NODE, {**FULL_NODE, "size": 2}]}),
    ({"list": [{"next": {"next": {}}}]}, {"list": [{"size": 1, "next": {"size": 1, "next": FULL_NODE}}]}),
    ({"pair": [1, {}]}, {"pair": [1, FULL_NODE]}),
    ({"map": {"a": {}, "b": "text", "c": None}}, {"map": {"a": FULL_NODE, "b": "text", "c": None}}),
    ({"both": {}}, {"both": {"a": 1, "b": {"c": 2}}}),
    # Nobody knows which of them the tool takes.
    ({"either": {}}, {"either": {}}),
    ({"again": {}}, {"again": {"child": {}}}),
    # A default that the schema itself refuses is left out, and no call fails because of it.
    ({"wrong": {}}, {"wrong": {"a": 1}}),
    ({"odd": {}}, {"odd": {}}),
    ({"full": {"b": 1}}, {"full": {"b": 1}}),
    # A result that is written like a binding is a value, so it hides no default.
    ({"list": [{"$from": "a"}]}, {"list": [{"$from": "a", **FULL_NODE}]}),
]


@requirement("approval:defaults")
@pytest.mark.parametrize(("arguments", "completed"), COMPLETED, ids=range(len(COMPLETED)))
def test_an_object_gets_the_defaults_of_its_schema_wherever_it_is(arguments: Json, completed: Json) -> None:
    assert Schema(KINDS).complete(arguments) == (completed, ())


@requirement("approval:defaults")
def test_arguments_that_lack_something_have_every_default_and_those_that_lack_none_stay_as_they_are() -> None:
    bare: Json = {"list": [{}]}
    full: Json = {"list": [FULL_NODE]}
    assert Schema({**KINDS, "required": ["to"]}).complete(bare) == (full, ('"to" is a required property',))
    assert Schema(KINDS).complete(full)[0] is full
    # Arguments at a gate run as the host sent them.
    assert Schema(KINDS, has_defaults=False).complete(bare)[0] is bare


WIDE: Json = {"properties": {f"p{n}": {"default": n} for n in range(2_000)}}
LONG: Json = {"properties": {"text": {"default": "x" * 60_000}}}
TANGLE: Json = {"properties": {f"p{n}": {"$ref": "#/definitions/T", "default": {}} for n in range(20)}}
RINGS: Json = {f"r{n}": {"properties": {"c": {"$ref": f"#/definitions/r{n + 1}", "default": {}}}} for n in range(1_000)}


TOO_LARGE_TO_FILL: dict[str, tuple[Json, Json, list[JsonValue]]] = {
    "many": (WIDE, {}, repeat({}, 20_000)),
    "long": (LONG, {}, repeat({}, 20_000)),
    "tangled": (TANGLE, {"T": TANGLE}, [{}]),
    "deep": ({"$ref": "#/definitions/r0"}, {**RINGS, "r1000": {}}, [{}]),
    "repeated": ({"allOf": repeat({"$ref": "#/definitions/a"}, 3_000)}, {"a": NODE, "Node": NODE}, repeat({}, 80_000)),
    "large": ({"$ref": "#/definitions/Node"}, {"Node": NODE}, repeat({}, 80_000)),
}


@requirement("approval:defaults", "downstream:schema-work")
@pytest.mark.parametrize(("items", "definitions", "value"), TOO_LARGE_TO_FILL.values(), ids=TOO_LARGE_TO_FILL)
def test_arguments_that_would_take_long_to_fill_in_are_refused_so_that_size_hides_no_default(
    items: Json, definitions: Json, value: list[JsonValue]
) -> None:
    schema: Json = {"properties": {"all": {"items": items}, "usual": {"default": 1}}, "definitions": definitions}
    completed, [fault] = Schema(schema).complete({"all": value})
    assert completed == {"all": value, "usual": 1} and "could take more than the 50 ms" in fault


@requirement("plan:literals")
@pytest.mark.parametrize("key", [{"dependsOn": []}, {"dependencies": 7}], ids=["unknown", "unreadable"])
def test_faults_of_keys_hide_no_fault_of_arguments_and_placeholders(key: Json) -> None:
    wrong = plan({**tool_step("a", "send", {"to": "Ann"}), **key}, tool_step("b", "send", {"lines": 1, "to": "<name>"}))
    with pytest.raises(InvalidPlan) as refused:
        parse_plan(wrong, author="model", tools=facts(ORDER))
    message = refused.value.message
    assert next(iter(key)) in message and "/to is the placeholder '<name>'" in message and "/lines" in message


@requirement("plan:placeholders")
def test_a_placeholder_of_a_caller_is_a_warning_and_one_of_a_model_a_fault() -> None:
    given = plan(tool_step("a", "send", {"to": "https://example.org/a", "copy": "<name>"}))
    accepted, warnings = parse_plan(given, author="caller", tools=facts({}))
    assert [warning.split(": ")[0] for warning in warnings] == ["step 'a', send"] * 2
    assert "/to is 'https://example.org/a', an example address" in warnings[0]
    with pytest.raises(InvalidPlan, match="/copy is the placeholder '<name>'"):
        parse_plan(given, author="model", tools=facts({}))
    goal: JsonValue = ["Send https://example.org/a and <name>", {}]
    assert parse_plan(given, author="caller", tools=facts({}), goal_and_inputs=goal)[1] == warnings
    # A model that revises a caller's plan is not blamed for steps that it left alone.
    again, warnings = parse_plan(given, author="model", tools=facts({}), earlier_plan=accepted)
    assert (again, warnings) == (accepted, ())


def bomb(levels: int, **root: JsonValue) -> Json:
    """A schema whose references double as often."""
    definitions: Json = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)
    }
    return {"$defs": {**definitions, f"a{levels}": {"type": "integer"}}, **(root or {"$ref": "#/$defs/a0"})}


def nest(value: JsonValue, levels: int, name: str) -> JsonValue:
    for _ in range(levels):
        value = {name: value}
    return value


def unevaluated(levels: int) -> Json:
    """A schema in which the properties that one leaves over are looked for in the next."""
    schema: Json = {"properties": {"a": True}}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


FOLLOWED = "following its references takes more than"
REFUSED: list[tuple[JsonValue, str]] = [
    (bomb(40), FOLLOWED),
    # A property that is named like a keyword hides nothing.
    (bomb(40, properties={"default": {"$ref": "#/$defs/a0"}}), FOLLOWED),
    (unevaluated(18), FOLLOWED),
    ({"$ref": "http://127.0.0.1:9/x.json"}, "remote reference"),
    ({"$ref": "#/$defs/gone"}, "leads nowhere"),
    ({"properties": {"a": {"$id": "http://x/", "$ref": "#"}}}, "an \\$id inside"),
    ({"$defs": {"unused": {"allOf": repeat({"type": "string"}, 100_000)}}}, "more than 10000 parts"),
    ({"allOf": [{"pattern": f"^{n}$"} for n in range(501)]}, "more than 500 patterns"),
    ({"pattern": "(?:x.{0,900}y){1,3}$"}, "is not supported, or takes more than 1048576 bytes"),
    ({"patternProperties": {"((a{0,99}){0,99}){0,99}": {}}}, "is not supported, or takes more than"),
    ({"pattern": "x" * 5_000}, "longer than 4096 characters"),
    ({"allOf": [{"pattern": f".{{1,{n}}}$"} for n in range(990, 999)]}, "its patterns take more than 2097152 bytes"),
    ({"multipleOf": 10**4_000}, "more than 1000 bits"),
    ({"allOf": [{"$ref": "#"}]}, "one of its references leads back to itself"),
    ({"properties": {"a": {"$ref": "#anchor"}}}, "reference '#anchor' is not a JSON Pointer"),
]


@requirement("downstream:schema-cost", "downstream:schema-work")
@pytest.mark.parametrize(("schema", "why"), REFUSED, ids=range(len(REFUSED)))
def test_a_schema_that_would_take_long_to_compile_or_leaves_itself_is_refused(schema: Json, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Schema(schema)


def test_nesting_is_bounded_without_a_recursion_error() -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        Schema({"not": nest({}, 9_000, "not")})


OBJECTS: list[JsonValue] = [{"name": f"value {n:020}", "place": n} for n in range(1_000)]
MANY_PATTERNS: Json = {"items": {"patternProperties": {f"^{n}": True for n in range(400)}}}
EXPENSIVE: list[tuple[Json, JsonValue]] = [
    ({"items": {"enum": OBJECTS}}, repeat(OBJECTS[-1], 5_000)),
    ({"items": {"oneOf": [{"const": n} for n in range(2_000)]}}, list(range(4_000))),
    ({"pattern": "x.{1,900}[yz]"}, "x" * 5_000),
    ({"patternProperties": {"a.{0,500}b": {}}}, {"a" * 100_000: 1}),
    ({"items": {"allOf": repeat({"multipleOf": 0.3}, 1_000)}}, repeat(1.5, 1_000)),
    ({"allOf": repeat({"uniqueItems": True}, 500)}, list(range(20_000))),
    (MANY_PATTERNS, repeat({str(n): 1 for n in range(400)}, 20)),
    # A pattern that needs a state for each way in which the last letters can be `a` or `b`.
    ({"pattern": "a[ab]{16}[c-z]"}, "".join("ab"[n * n % 7 % 2] for n in range(40_000))),
    ({"allOf": [{"contains": {"const": n}, "minContains": 0} for n in range(100)]}, list(range(10_000))),
]


@requirement("downstream:schema-work")
@pytest.mark.parametrize(("schema", "value"), EXPENSIVE, ids=range(len(EXPENSIVE)))
def test_a_value_that_would_take_long_to_check_is_refused_before_it_is(schema: Json, value: JsonValue) -> None:
    checked = Schema(schema)
    assert re.search("could take more than the 50 ms|more than 100000 values", checked.find_faults(value)[0])


TREE: Json = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "type": "object"}
TWICE: Json = {"allOf": repeat({"properties": {"a": {"$ref": "#"}}}, 2)}
"""Doubles for each level of a value."""
CHAIN: Json = {"type": "object", "properties": {"next": {"$ref": "#"}}}
TOO_LARGE = "it does not fit its schema, and is too large to say where"
WRITE: Json = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "pattern": r"^[\w/.-]{1,255}$"},
        "text": {"type": "string", "maxLength": 10_000_000},
        "mode": {"enum": ["w", "a"]},
    },
    "required": ["path", "text"],
    "additionalProperties": False,
}
ROW: Json = {"type": "object", "properties": {f"column{n}": {"type": ["string", "null"]} for n in range(12)}}
JUDGED: list[tuple[Json, JsonValue, str]] = [
    (TREE, {"left": {"right": 1}}, "is not of type"),
    (TWICE, nest({}, 60, "a"), "could take more than the 50 ms"),
    (CHAIN, nest({}, 60, "next"), ""),
    ({"anyOf": [{"maxLength": n} for n in range(1_000)]}, "x" * 200_000, TOO_LARGE),
    ({"items": {"enum": [f"a{n}" for n in range(5_000)]}}, repeat("b", 1_000), '/0: "b" is not one of'),
    # A large value has its first fault described, or which of its keys are missing and too much.
    (WRITE, {"text": "x" * 2_000_000, "file": "a"}, "'path' is a required property|'file' was unexpected"),
    # Ordinary schemas take large values.
    (WRITE, {"path": "a/b.txt", "text": "x" * 2_000_000, "mode": "w"}, ""),
    ({"items": ROW}, repeat({f"column{n}": f"value {n}" for n in range(12)}, 1_000), ""),
    # Numbers that the library would calculate with for long are faults.
    ({"uniqueItems": True}, [10**4_000 + n for n in range(9)], "more than 1000 bits"),
    ({"type": "integer", "maximum": 10}, 10**40, "maximum"),
    ({"type": "string"}, "\ud800", "not Unicode"),
    ({"anyOf": [{"type": "object"}, {"minimum": 0}], "properties": {"a": {"$ref": "#/anyOf/1"}}}, {"a": -1}, "/a: -1"),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, [], "it is not of type string or integer"),
    ({"allOf": [{"properties": {"a": {}}, "additionalProperties": False}]}, {"b": 1}, "; it takes 'a'"),
    ({"patternProperties": {"^x": {}}, "additionalProperties": False}, {"b": 1}, "('b' was unexpected)"),
    # A pattern that could backtrack is matched in steps of its text.
    ({"type": "object", "properties": {"text": {"pattern": "^(a+)+$"}}}, {"text": "a" * 200_000 + "!"}, "t"),
]


@pytest.mark.parametrize(("schema", "value", "said"), JUDGED, ids=range(len(JUDGED)))
def test_a_value_of_any_size_is_judged_in_words(schema: Json, value: JsonValue, said: str) -> None:
    faults = "|".join(Schema(schema).find_faults(value))
    assert said in faults if said else faults == ""
