"""Schemas of strangers: what checking a value may cost is known before it is tried."""

import anyio
import pytest
from pydantic import JsonValue

from planwarden.agent.common.schema import Schema
from planwarden.agent.common.schema_cost import estimate_cost
from tests.requirements import requirement


def bomb(levels: int) -> dict[str, JsonValue]:
    definitions: dict[str, JsonValue] = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)
    }
    return {"$defs": {**definitions, f"a{levels}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


@requirement("downstream:schema-cost")
def test_references_that_double_forty_times_are_refused_before_they_are_compiled() -> None:
    """ours: 2**40 steps run in native code, which no cancel scope can stop"""
    with pytest.raises(ValueError, match="following its references takes more than"):
        Schema(bomb(40))
    assert Schema(bomb(5)).find_faults(1) == ()


@pytest.mark.parametrize("keyword", ["default", "enum", "definitions", "const"])
def test_a_property_named_like_a_keyword_hides_nothing(keyword: str) -> None:
    """ours"""
    hidden = bomb(40)
    with pytest.raises(ValueError, match="following its references"):
        Schema({"$defs": hidden["$defs"], "properties": {keyword: {"$ref": "#/$defs/a0"}}})


def test_a_tree_is_checked_and_a_schema_that_doubles_per_level_checks_only_flat_values() -> None:
    """ours"""
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
    """ours"""
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
    """ours"""
    with pytest.raises(ValueError, match=why):
        Schema(schema)


def test_nesting_is_bounded_without_a_recursion_error() -> None:
    """ours"""
    nested: JsonValue = {}
    for _ in range(100_000):
        nested = {"not": nested}
    with pytest.raises(ValueError, match="nested deeper"):
        estimate_cost(nested)


@pytest.mark.anyio
async def test_a_catastrophic_pattern_takes_no_time() -> None:
    """ours: approvals and everything else share the loop"""
    schema = Schema({"type": "object", "properties": {"text": {"pattern": "^(a+)+$"}}})
    with anyio.fail_after(60):
        assert schema.find_faults({"text": "a" * 500_000 + "!"}) != ()
        await anyio.lowlevel.checkpoint()
