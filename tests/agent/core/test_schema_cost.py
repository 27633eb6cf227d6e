"""Schemas of strangers: what checking a value may cost is known before it is tried."""

import re

import pytest
from pydantic import JsonValue

from planwarden.agent.common.schema import Schema
from tests.requirements import requirement

Json = dict[str, JsonValue]


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


def repeat(value: JsonValue, times: int) -> list[JsonValue]:
    return [value] * times


FOLLOWED = "following its references takes more than"
REFUSED: list[tuple[JsonValue, str]] = [
    (bomb(40), FOLLOWED),
    # A property that is named like a keyword hides nothing.
    *((bomb(40, properties={name: {"$ref": "#/$defs/a0"}}), FOLLOWED) for name in ("default", "enum", "definitions")),
    (unevaluated(18), FOLLOWED),
    ({"$ref": "http://127.0.0.1:9/x.json"}, "remote reference"),
    ({"$ref": "#/$defs/gone"}, "leads nowhere"),
    ({"$ref": "#anchor"}, "not a JSON Pointer"),
    ({"properties": {"a": {"$id": "http://x/", "$ref": "#"}}}, "an \\$id inside"),
    ({"allOf": repeat({"type": "string"}, 100_000)}, "more than 10000 parts"),
    ({"$defs": {"unused": {"allOf": repeat({"type": "string"}, 100_000)}}}, "more than 10000 parts"),
    ({"allOf": [{"pattern": f"^{n}$"} for n in range(501)]}, "more than 500 patterns"),
    ({"pattern": "(?:x.{0,900}y){1,3}$"}, "is not supported, or takes more than 1048576 bytes"),
    ({"patternProperties": {"((a{0,99}){0,99}){0,99}": {}}}, "is not supported, or takes more than"),
    ({"pattern": "x" * 5_000}, "longer than 4096 characters"),
    ({"allOf": [{"pattern": f".{{1,{n}}}$"} for n in range(990, 999)]}, "its patterns take more than 2097152 bytes"),
    ({"multipleOf": 10**4_000}, "more than 1000 bits"),
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
    ({"items": {"anyOf": [{"maxLength": n} for n in range(1_000)]}}, repeat("x" * 250, 1_000)),
    ({"pattern": "x.{1,900}[yz]"}, "x" * 5_000),
    ({"properties": {"text": {"pattern": "b[ab]{0,500}c"}}}, {"text": "ab" * 50_000}),
    ({"patternProperties": {"a.{0,500}b": {}}}, {"a" * 100_000: 1}),
    ({"propertyNames": {"pattern": "a.{0,500}b"}}, {"a" * 100_000: 1}),
    ({"items": {"allOf": repeat({"multipleOf": 0.3}, 1_000)}}, repeat(1.5, 1_000)),
    ({"allOf": repeat({"uniqueItems": True}, 500)}, list(range(20_000))),
    ({"items": {"maximum": 1e301}}, repeat(1e300, 10_000)),
    ({"items": {"enum": [n + 0.5 for n in range(1_000)]}}, repeat(999.5, 1_000)),
    ({"items": {"const": 0.25}}, repeat(5e-324, 10_000)),
    (MANY_PATTERNS, repeat({str(n): 1 for n in range(400)}, 20)),
    # A pattern that needs a state for each way in which the last letters can be `a` or `b`.
    ({"pattern": "a[ab]{16}[c-z]"}, "".join("ab"[n * n % 7 % 2] for n in range(40_000))),
    ({"allOf": [{"contains": {"const": n}, "minContains": 0} for n in range(100)]}, list(range(10_000))),
    ({"uniqueItems": True}, repeat(0, 200_000)),
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
STAMPED: Json = {
    "properties": {
        "id": {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
        "on": {"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
    }
}
FILTER: Json = {
    "oneOf": [
        *({"properties": {name: {"items": {"$ref": "#"}}}, "required": [name]} for name in ("and", "or")),
        {"properties": {"not": {"$ref": "#"}}, "required": ["not"]},
        {"properties": {"field": {"type": "string"}}, "required": ["field"]},
    ]
}
JUDGED: list[tuple[Json, JsonValue, str]] = [
    (bomb(5), 1, ""),
    (TREE, {"left": {"right": {}}}, ""),
    (TREE, {"left": {"right": 1}}, "is not of type"),
    (TWICE, {"a": {}}, ""),
    (TWICE, nest({}, 60, "a"), "could take more than the 50 ms"),
    (CHAIN, nest({}, 60, "next"), ""),
    ({"anyOf": [{"maxLength": n} for n in range(1_000)]}, "x" * 200_000, TOO_LARGE),
    ({"items": {"enum": [f"a{n}" for n in range(5_000)]}}, repeat("b", 1_000), '/0: "b" is not one of'),
    ({"items": {"type": "string"}}, list(range(20_000)), '/0: 0 is not of type "string"'),
    # A large value has its first fault described, or which of its keys are missing and too much.
    (WRITE, {"text": "x" * 2_000_000, "file": "a"}, "'path' is a required property|'file' was unexpected"),
    # Ordinary schemas take large values.
    (WRITE, {"path": "a/b.txt", "text": "x" * 2_000_000, "mode": "w"}, ""),
    ({"items": ROW}, repeat({f"column{n}": f"value {n}" for n in range(12)}, 1_000), ""),
    ({"items": {"enum": [f"country {n}" for n in range(250)]}}, repeat("country 249", 5_000), ""),
    ({"items": {"type": "number", "minimum": 0, "maximum": 1e9}}, [n / 100 for n in range(5_000)], ""),
    ({"items": STAMPED}, repeat({"id": "9b2d" * 2 + "-9b2d" * 3 + "-" + "9b2d" * 3, "on": "2026-01-02"}, 2_000), ""),
    (FILTER, {"and": repeat({"or": [{"not": {"field": "x"}}, {"field": "y"}]}, 200)}, ""),
    # Numbers that the library would calculate with for long are faults.
    ({"uniqueItems": True}, [10**4_000 + n for n in range(9)], "more than 1000 bits"),
    ({"type": "integer", "maximum": 10}, 10**40, "maximum"),
    ({"type": "integer", "minimum": 10}, 10**40, ""),
    ({"type": "string"}, "\ud800", "not Unicode"),
    # A pattern that could backtrack is matched in steps of its text.
    ({"type": "object", "properties": {"text": {"pattern": "^(a+)+$"}}}, {"text": "a" * 200_000 + "!"}, "t"),
]


@pytest.mark.parametrize(("schema", "value", "said"), JUDGED, ids=range(len(JUDGED)))
def test_a_value_of_any_size_is_judged_in_words(schema: Json, value: JsonValue, said: str) -> None:
    faults = "|".join(Schema(schema).find_faults(value))
    assert said in faults if said else faults == ""
