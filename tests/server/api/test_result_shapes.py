"""The shape of a result: names and kinds, no value, and bounded whatever a server sends."""

import json

from pydantic import JsonValue

from planwarden.server.api.result_shapes import MAX_SHAPE_CHARS, describe_shape


def test_a_shape_has_names_and_kinds_and_no_value() -> None:
    value: JsonValue = {"rows": [{"no": "7", "sum": 1.5, "paid": True}], "note": '{"a": [1]}', "none": None}
    assert describe_shape(value) == {
        "rows": [{"no": "text", "sum": "number", "paid": "true or false"}],
        "note": {'text with JSON, for "parse": "json"': {"a": ["number"]}},
        "none": "null",
    }


def test_a_shape_is_bounded_however_wide_and_deep_the_value_is() -> None:
    value: JsonValue = "x"
    for _ in range(4):
        value = {f"{n}{'k' * 60}": value for n in range(20)}
    assert 2 < len(json.dumps(describe_shape(value))) <= MAX_SHAPE_CHARS
