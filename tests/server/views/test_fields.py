"""Fields of forms: what a person types, and the text of a value, are the same thing in both directions."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.views.fields import Field, build_field, build_fields, read_inputs
from tests.requirements import requirement
from tests.support.strategies import JSON, NUMBERS, TEXT

LEAVES = [None, True, False, 1, 1.0, -2.5, "1", "true", '"a"', "a b", " ", "\n", "\u202e", "é"]
CHOICES = st.lists(st.sampled_from(cast("list[JsonValue]", LEAVES)) | TEXT, max_size=5)
KEYWORDS: dict[str, st.SearchStrategy[JsonValue]] = {
    "type": st.sampled_from(["string", "integer", "number", "boolean", "object", "null"]),
    "enum": cast("st.SearchStrategy[JsonValue]", CHOICES),
    "maxLength": st.integers(0, 200),
}
SCHEMAS: st.SearchStrategy[dict[str, JsonValue]] = st.fixed_dictionaries({}, optional=KEYWORDS)


@st.composite
def fields(draw: st.DrawFn) -> tuple[Field, JsonValue]:
    """A field, and a value that it can hold."""
    schema = draw(SCHEMAS)
    initial = draw(st.none() | st.fixed_dictionaries({"a": JSON})) or {}
    field = build_field("a", schema, initial)
    if field.choices:
        return field, draw(st.sampled_from(field.choices))
    return field, draw(TEXT if field.is_text else NUMBERS if field.kind == "number" else JSON)


@requirement("forms:round-trip")
@given(fields())
def test_the_text_of_a_value_is_read_as_the_same_value(made: tuple[Field, JsonValue]) -> None:
    field, value = made
    text = field.write(value)
    assert canonical_json(field.read(text)) == canonical_json(value)
    assert field.write(field.read(text)) == text


@given(st.dictionaries(TEXT, JSON, max_size=5), st.dictionaries(TEXT, SCHEMAS, max_size=5))
def test_a_form_that_is_sent_as_it_was_shown_holds_the_values_that_it_began_with(
    values: dict[str, JsonValue], properties: dict[str, dict[str, JsonValue]]
) -> None:
    schema: dict[str, JsonValue] = {"properties": cast("JsonValue", properties)}
    shown = build_fields(schema, values)
    assert {field.name for field in shown} == values.keys() | properties.keys()
    sent: dict[str, JsonValue] = {field.name: field.read(field.text) for field in shown if field.is_present}
    assert canonical_json(sent) == canonical_json(values)


READINGS: list[tuple[dict[str, JsonValue], dict[str, JsonValue], str]] = [
    ({"type": "boolean"}, {"Yes": True, "0": False, "false": False}, "perhaps: choose an option"),
    ({"enum": ["true", True, 2]}, {"true": True, '"true"': "true", "2": 2}, "3: choose an option"),
    ({"enum": ["true", "rude"]}, {"true": "true", '"rude"': "rude"}, "mild: choose an option"),
    ({"type": "string", "oneOf": [{"const": "eu"}, {"const": "1"}]}, {"eu": "eu", "1": "1"}, "asia: choose an option"),
    ({"oneOf": [{"type": "integer"}, {"const": 1}]}, {"7": 7}, "{: not valid JSON"),
    ({"type": "integer"}, {"12": 12, "1e3": 1000.0}, "true: write a number"),
    ({"type": "number"}, {"-1": -1}, "NaN: write a number"),
    ({}, {'{"a": [1]}': {"a": [1]}}, "{: not valid JSON"),
]


def test_each_choice_is_listed_with_its_own_title_even_beside_one_that_python_calls_equal() -> None:
    field = build_field("a", {"oneOf": [{"const": 1, "title": "once"}, {"const": True, "title": "always"}]})
    assert [field.label_choice(choice) for choice in field.choices] == ["1 (once)", "true (always)"]


@pytest.mark.parametrize(("schema", "read", "refused"), READINGS)
def test_what_people_type_is_read_or_refused_with_what_to_write(
    schema: dict[str, JsonValue], read: dict[str, JsonValue], refused: str
) -> None:
    field, (wrong, fault) = build_field("a", schema), refused.split(": ")
    assert canonical_json({typed: field.read(typed) for typed in read}) == canonical_json(read)
    with pytest.raises(InvalidArguments, match=fault):
        field.read(wrong)
    assert field.read_typed(wrong) == wrong


def test_typed_inputs_follow_a_reference_of_the_plan_and_take_text_where_the_plan_takes_text() -> None:
    inputs: dict[str, JsonValue] = {
        "properties": {
            "tone": {"$ref": "#/$defs/tone"},
            "order": {"type": ["string", "null"]},
            "zip": {"anyOf": [{"type": "integer"}, {"allOf": [{"type": "string"}]}]},
            "size": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
            "count": {"$ref": "#/nowhere"},
        },
        "$defs": {"tone": {"enum": ["1", "2"]}},
    }
    typed = [("tone", "1"), ("order", "123"), ("zip", "123"), ("size", "5"), ("count", "4"), ("other", "free words")]
    texts = {"tone": "1", "order": "123", "zip": "123", "other": "free words"}
    assert read_inputs(inputs, typed) == {**texts, "size": 5, "count": 4}
