"""Literal arguments of a plan: checked by the tools' schemas before anything runs, and what bindings bring is not."""

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.bindings import Path, leave_out_bindings
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_checks.arguments import CHECK_LIMIT, MAX_FAULTS, WrittenCall, find_argument_faults
from planwarden.agent.core.plan_parser import parse_plan
from tests.kit import plan, requirement, tool_step

Json = dict[str, JsonValue]

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
        assert refused.message.startswith("nothing of the plan has run: ") and "get_tool_schemas" in refused.message
        return [str(problem) for problem in cast(list[JsonValue], refused.details["problems"])]
    return []


@requirement("plan:literals")
def test_every_fault_is_named_at_once_with_step_tool_path_and_what_is_wanted() -> None:
    found = problems_of(
        {"to": 5, "lines": [{"text": "x", "bold": "yes"}], "kind": "box", "subject": "Hello"},
        {"amount": 0, "box": {"width": "wide"}},
    )
    names = "'to', 'amount', 'kind', 'box', 'lines', 'tags'"
    assert sorted(found) == sorted(
        [
            'step \'b0\', send: /kind: "box" is not one of "letter" or "parcel"',
            'step \'b0\', send: /lines/0/bold: "yes" is not of type "boolean"',
            "step 'b0', send: /to: 5 is not of type \"string\"",
            f"step 'b0', send: Additional properties are not allowed ('subject' was unexpected); it takes {names}",
            "step 'b1', send: /amount: 0 is less than the minimum of 1",
            'step \'b1\', send: /box/width: "wide" is not of type "number"',
            "step 'b1', send: \"to\" is a required property",
            "step 'b1', send: \"lines\" is a required property",
        ]
    )


@requirement("plan:literals")
def test_what_is_bound_is_skipped_and_everything_around_it_is_checked() -> None:
    assert problems_of({"to": BOUND, "lines": BOUND, "kind": BOUND, "tags": [BOUND, BOUND, None]}) == []
    assert problems_of({"to": BOUND, "lines": [{"text": BOUND}], "box": {"width": BOUND}, "kind": "parcel"}) == []
    refused: list[tuple[Json, str]] = [
        ({"to": BOUND, "lines": []}, "/lines: [] has less than 1 item"),
        ({"to": BOUND, "lines": [{"text": BOUND, "bold": 1}]}, '/lines/0/bold: 1 is not of type "boolean"'),
        ({"to": BOUND, "lines": BOUND, "subject": BOUND}, "'subject' was unexpected"),
        ({"lines": BOUND}, '"to" is a required property'),
        ({"to": BOUND, "lines": BOUND, "amount": None}, '/amount: null is not of type "integer"'),
        ({"to": BOUND, "lines": BOUND, "kind": "box"}, "/kind: "),
        ({"to": BOUND, "lines": BOUND, "box": {"label": BOUND}}, '/box: "width" is a required property'),
        ({"to": BOUND, "lines": {"0": BOUND}}, '/lines: {"0":null} is not of type "array"'),
    ]
    for wrong, fault in refused:
        [found] = problems_of(wrong)
        assert fault in found


@requirement("plan:literals")
@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"oneOf": [{"properties": {"n": {"type": "integer"}}}, {"properties": {"n": {"type": "string"}}}]}, 1.5),
        ({"not": {"properties": {"n": {"const": None}}}}, None),
        ({"enum": [{"n": 1}, {"n": 2}]}, 3),
        ({"unevaluatedProperties": False, "anyOf": [{"properties": {"n": {"const": 1}}}]}, 2),
        ({"properties": {"n": {"type": "array", "contains": {"const": 1}}}}, [2]),
    ],
)
def test_what_depends_on_a_bound_value_is_not_judged(schema: Json, wrong: JsonValue) -> None:
    assert problems_of({"n": BOUND}, schema=schema) == [] != problems_of({"n": wrong}, schema=schema)


SCHEMAS: list[tuple[Json, st.SearchStrategy[Any]]] = [
    (
        ORDER,
        st.fixed_dictionaries(
            {
                "to": st.text("abc", min_size=3),
                "lines": st.lists(
                    st.fixed_dictionaries({}, optional={"text": st.text("x"), "bold": st.booleans()}), min_size=1
                ),
                "box": st.none() | st.fixed_dictionaries({"width": st.integers(0, 5)}, optional={"label": st.none()}),
            },
            optional={
                "amount": st.integers(1, 5),
                "kind": st.sampled_from(["letter", "parcel"]),
                "tags": st.lists(st.none() | st.booleans(), unique=True),
            },
        ),
    ),
    (
        {
            "oneOf": [
                {"required": ["n"], "properties": {"n": {"type": "integer"}}, "additionalProperties": False},
                {"required": ["s"], "properties": {"s": {"enum": ["x", ["y"]]}}, "unevaluatedProperties": False},
                {"required": ["n", "d"], "dependentRequired": {"d": ["e"]}, "properties": {"e": {"not": {"const": 1}}}},
            ],
            "propertyNames": {"maxLength": 2},
        },
        st.one_of(
            st.fixed_dictionaries({"n": st.integers(0, 9)}),
            st.fixed_dictionaries({"s": st.sampled_from(cast(list[JsonValue], ["x", ["y"]]))}),
            st.fixed_dictionaries({"n": st.integers(0, 9), "d": st.none(), "e": st.booleans()}),
        ),
    ),
]


@requirement("plan:literals")
@pytest.mark.parametrize("number", range(len(SCHEMAS)))
@given(data=st.data())
def test_arguments_that_fit_are_never_refused_whatever_of_them_is_bound(number: int, data: st.DataObject) -> None:
    schema, fitting = SCHEMAS[number]
    arguments = data.draw(fitting)
    assert Schema(schema).find_faults(arguments) == ()
    paths = list(list_paths(arguments))
    for path in data.draw(st.lists(st.sampled_from(paths), max_size=4)) if paths else []:
        arguments = cast(Json, bind(arguments, path))
    bound: list[Path] = []
    filled = {key: leave_out_bindings(value, bound, (key,)) for key, value in arguments.items()}
    assert Schema(schema).find_certain_faults(filled, bound, CHECK_LIMIT)[0] == ()


def list_paths(value: JsonValue, path: Path = ()) -> list[Path]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [found for key, child in children for found in list_paths(child, (*path, key))]
    return [*([path] if path else []), *below]


def bind(value: JsonValue, path: Path) -> JsonValue:
    """Returns the value with a binding at the path, unless the path leads into another binding."""
    value = deepcopy(value)
    node = value
    for key in path[:-1]:
        node = node[key]  # pyright: ignore
        if isinstance(node, dict) and "$from" in node:
            return value
    node[path[-1]] = dict(BOUND)  # pyright: ignore
    return value


@requirement("plan:literals")
def test_checking_the_largest_plans_does_not_stand_the_loop_still() -> None:
    many: Json = {"to": BOUND, "lines": [{"text": "x" * 200, "bold": True} for _ in range(20)]}
    heavy: Json = {"to": "abc", "lines": [{"text": str(number), "bold": BOUND} for number in range(5_000)]}
    wrong: Json = {"to": "me", "lines": [{"bold": 1} for _ in range(20)]}
    check = Schema(ORDER).find_certain_faults
    units = [0]

    def count(value: Json, unknown: Collection[Path], limit: int) -> tuple[tuple[str, ...], int]:
        found, work = check(value, unknown, limit)
        units[-1] += work
        return found, work

    for arguments, times, faults in ((many, 2_500, 0), (heavy, 50, 0), (wrong, 2_500, MAX_FAULTS)):
        units.append(0)
        assert len(find_argument_faults([WrittenCall("a", "send", arguments)] * times, {"send": count})) == faults
    # Ten units take a microsecond. The last check may go on for as long as all before it.
    assert max(units) < 2 * CHECK_LIMIT, units


@requirement("plan:placeholders")
def test_a_placeholder_of_a_caller_is_a_warning_and_one_of_a_model_a_fault() -> None:
    given = plan(tool_step("a", "send", {"to": "https://example.org/a", "copy": "<name>"}))
    accepted, warnings = parse_plan(given, author="caller", tools=facts({}))
    assert [warning.split(": ")[0] for warning in warnings] == ["step 'a', send"] * 2
    assert "/to is 'https://example.org/a', an example address" in warnings[0]
    with pytest.raises(InvalidPlan, match="/copy is the placeholder '<name>'"):
        parse_plan(given, author="model", tools=facts({}))
    # A model that revises a caller's plan is not blamed for steps that it left alone.
    again, warnings = parse_plan(given, author="model", tools=facts({}), known=accepted)
    assert (again, warnings) == (accepted, ())
