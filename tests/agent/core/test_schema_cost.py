"""Schemas of strangers: what checking a value may cost is known before it is tried."""

import pytest
from pydantic import JsonValue

from planwarden.agent.common.schema import MAX_WORK, Schema
from planwarden.agent.common.schema_cost import estimate_cost
from tests.requirements import requirement


def bomb(levels: int) -> dict[str, JsonValue]:
    definitions: dict[str, JsonValue] = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)
    }
    return {"$defs": {**definitions, f"a{levels}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


@requirement("downstream:schema-cost")
def test_references_that_double_forty_times_are_refused_before_they_are_compiled() -> None:
    with pytest.raises(ValueError, match="following its references takes more than"):
        Schema(bomb(40))
    assert Schema(bomb(5)).find_faults(1) == ()


@pytest.mark.parametrize("keyword", ["default", "enum", "definitions", "const"])
def test_a_property_named_like_a_keyword_hides_nothing(keyword: str) -> None:
    hidden = bomb(40)
    with pytest.raises(ValueError, match="following its references"):
        Schema({"$defs": hidden["$defs"], "properties": {keyword: {"$ref": "#/$defs/a0"}}})


def test_a_tree_is_checked_and_a_schema_that_doubles_per_level_checks_only_flat_values() -> None:
    tree: dict[str, JsonValue] = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "type": "object"}
    assert Schema(tree).find_faults({"left": {"right": {}}}) == ()
    assert Schema(tree).find_faults({"left": {"right": 1}}) != ()
    twice: dict[str, JsonValue] = {
        "allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]
    }
    deep: JsonValue = {}
    for _ in range(60):
        deep = {"a": deep}
    assert Schema(twice).find_faults({"a": {}}) == ()
    assert "nested too deep" in Schema(twice).find_faults(deep)[0]


def test_one_reference_back_is_linear_at_any_depth() -> None:
    chain: dict[str, JsonValue] = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    deep: JsonValue = {}
    for _ in range(60):
        deep = {"next": deep}
    assert Schema(chain).find_faults(deep) == ()


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "http://127.0.0.1:9/x.json"}, "remote reference"),
        ({"$ref": "#/$defs/gone"}, "leads nowhere"),
        ({"$ref": "#anchor"}, "not a JSON Pointer"),
        ({"properties": {"a": {"$id": "http://x/", "$ref": "#"}}}, "an \\$id inside"),
    ],
)
def test_references_that_leave_the_schema_are_refused(schema: dict[str, JsonValue], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Schema(schema)


def test_nesting_is_bounded_without_a_recursion_error() -> None:
    nested: JsonValue = {}
    for _ in range(9_000):
        nested = {"not": nested}
    with pytest.raises(ValueError, match="nested deeper"):
        estimate_cost(nested)


@requirement("downstream:schema-work")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"allOf": [{"type": "string"}] * 100_000}, "more than 10000 parts"),
        ({"$defs": {"unused": {"allOf": [{"type": "string"}] * 100_000}}}, "more than 10000 parts"),
        ({"allOf": [{"pattern": f"^{n}$"} for n in range(501)]}, "more than 500 patterns"),
        ({"pattern": "(?:x.{0,900}y){1,3}$"}, "is not supported, or takes more than 1048576 bytes"),
        ({"patternProperties": {"((a{0,99}){0,99}){0,99}": {}}}, "is not supported, or takes more than"),
        ({"pattern": "x" * 5_000}, "longer than 4096 characters"),
        (
            {"allOf": [{"pattern": f".{{1,{n}}}$"} for n in range(990, 999)]},
            "its patterns take more than 2097152 bytes",
        ),
    ],
)
def test_a_schema_that_would_take_long_to_compile_or_match_is_refused(schema: dict[str, JsonValue], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Schema(schema)


def test_unevaluated_properties_in_each_other_are_refused() -> None:
    schema: dict[str, JsonValue] = {"properties": {"a": True}}
    for _ in range(18):
        inner: list[JsonValue] = [schema]
        schema = {"allOf": inner, "unevaluatedProperties": False}
    with pytest.raises(ValueError, match="following its references takes more than"):
        Schema(schema)


OBJECTS: list[JsonValue] = [{"name": f"value {n:020}", "place": n} for n in range(1_000)]


def repeat(value: JsonValue, times: int) -> JsonValue:
    return [value] * times


EXPENSIVE: list[tuple[dict[str, JsonValue], JsonValue]] = [
    ({"items": {"enum": OBJECTS}}, repeat(OBJECTS[-1], 5_000)),
    ({"items": {"oneOf": [{"const": n} for n in range(2_000)]}}, list(range(4_000))),
    ({"items": {"anyOf": [{"maxLength": n} for n in range(1_000)]}}, repeat("x" * 250, 1_000)),
    ({"pattern": "^.{1,900}$"}, "x" * 250_000),
    ({"properties": {"text": {"pattern": "^[ab]{0,500}$"}}}, {"text": "ab" * 500_000}),
    ({"patternProperties": {"a.{0,500}b": {}}}, {"a" * 100_000: 1}),
    ({"propertyNames": {"pattern": "a.{0,500}b"}}, {"a" * 100_000: 1}),
    ({"items": {"allOf": repeat({"multipleOf": 0.3}, 1_000)}}, repeat(1.5, 1_000)),
    ({"allOf": repeat({"uniqueItems": True}, 500)}, list(range(20_000))),
    ({"items": {"maximum": 1e301}}, repeat(1e300, 10_000)),
    ({"items": {"enum": [n + 0.5 for n in range(1_000)]}}, repeat(999.5, 1_000)),
    ({"items": {"const": 0.25}}, repeat(5e-324, 10_000)),
    (
        {"items": {"patternProperties": {f"^{n}": True for n in range(400)}}},
        repeat({str(n): 1 for n in range(400)}, 20),
    ),
]


@requirement("downstream:schema-work")
@pytest.mark.parametrize(("schema", "value"), EXPENSIVE)
def test_a_value_that_would_take_long_to_check_is_refused_before_it_is(
    schema: dict[str, JsonValue], value: JsonValue
) -> None:
    checked = Schema(schema)
    assert "too much work" in checked.find_faults(value)[0]
    # The count itself stops at its limit.
    work = checked.count_work(value, MAX_WORK)
    assert work is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"maxLength": n} for n in range(1_000)]}, "x" * 250_000),
        ({"items": {"enum": [f"a{n}" for n in range(5_000)]}}, ["b"] * 1_000),
        ({"items": {"type": "string"}}, list(range(20_000))),
    ],
)
def test_faults_that_would_take_long_to_describe_are_one(schema: dict[str, JsonValue], value: JsonValue) -> None:
    assert Schema(schema).find_faults(value) == ("it does not fit its schema, and is too large to say where",)


def test_a_large_value_without_a_required_key_is_told_which() -> None:
    schema = Schema(
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            "required": ["path", "text"],
            "additionalProperties": False,
        }
    )
    faults = schema.find_faults({"text": "x" * 2_000_000, "file": "a"})
    assert faults == ("'path' is a required property", "'file' was unexpected")


def test_ordinary_schemas_take_large_values() -> None:
    write: dict[str, JsonValue] = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "pattern": r"^[\w/.-]{1,255}$"},
            "text": {"type": "string", "maxLength": 10_000_000},
            "mode": {"enum": ["w", "a"]},
        },
        "required": ["path", "text"],
    }
    assert Schema(write).find_faults({"path": "a/b.txt", "text": "x" * 2_000_000, "mode": "w"}) == ()
    rows: dict[str, JsonValue] = {
        "type": "object",
        "properties": {
            "rows": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {f"column{n}": {"type": ["string", "null"]} for n in range(12)},
                },
            }
        },
    }
    row: JsonValue = {f"column{n}": f"value {n}" for n in range(12)}
    listed: list[JsonValue] = [row] * 1_000
    assert Schema(rows).find_faults({"rows": listed}) == ()
    countries: dict[str, JsonValue] = {"items": {"enum": [f"country {n}" for n in range(250)]}}
    named: list[JsonValue] = ["country 249"] * 5_000
    assert Schema(countries).find_faults(named) == ()
    prices: dict[str, JsonValue] = {"items": {"type": "number", "minimum": 0, "maximum": 1e9}}
    assert Schema(prices).find_faults([n / 100 for n in range(5_000)]) == ()


def test_numbers_that_the_library_would_calculate_with_for_long_are_faults() -> None:
    assert "more than 1000 bits" in Schema({"uniqueItems": True}).find_faults([10**4_000 + n for n in range(9)])[0]
    assert Schema({"type": "integer", "maximum": 10}).find_faults(10**40) != ()
    assert Schema({"type": "integer", "minimum": 10}).find_faults(10**40) == ()
    with pytest.raises(ValueError, match="more than 1000 bits"):
        Schema({"multipleOf": 10**4_000})


def test_text_that_is_not_unicode_is_a_fault() -> None:
    assert "not Unicode" in Schema({"type": "string"}).find_faults("\ud800")[0]


def test_a_pattern_that_could_backtrack_is_matched_in_steps_of_its_text() -> None:
    schema = Schema({"type": "object", "properties": {"text": {"pattern": "^(a+)+$"}}})
    assert schema.find_faults({"text": "a" * 200_000 + "!"}) != ()
