"""Schemas and arguments of signatures, and copies of results: what pydantic makes of them."""

import json
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from planwarden.agent.common.errors import UsageError
from planwarden.tools.arguments import Arguments
from planwarden.tools.base import as_tool
from planwarden.tools.function import tool
from planwarden.tools.large_results import to_plain


def test_the_schema_of_a_signature_is_the_same_in_every_version() -> None:
    @tool
    def book(seat: str, days: Annotated[int, Field(ge=1)], notes: list[str] | None = None, price: float = 1.5) -> None:
        """Book."""

    definition = as_tool(book).definition
    assert json.dumps(definition.input_schema) == (
        '{"additionalProperties": false, "properties": {"seat": {"type": "string"}, '
        '"days": {"minimum": 1, "type": "integer"}, '
        '"notes": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": null}, '
        '"price": {"default": 1.5, "type": "number"}}, "required": ["seat", "days"], "type": "object"}'
    )
    assert Arguments("x", {}).schema == {"additionalProperties": False, "properties": {}, "type": "object"}


def test_a_function_gets_values_of_its_annotated_types() -> None:
    arguments = Arguments("x", {"when": (float, ...), "ids": (list[int], ...), "note": (str | None, None)})
    assert repr(arguments.read({"when": 5, "ids": [1, 2.0, "3"]})) == "{'when': 5.0, 'ids': [1, 2, 3], 'note': None}"
    sent: tuple[dict[str, Any], ...] = ({}, {"when": "soon", "ids": []}, {"when": 5, "ids": [], "more": 1})
    for wrong in sent:
        with pytest.raises(ValidationError):
            arguments.read(wrong)


def test_a_parameter_may_be_called_as_a_method_of_a_model_is() -> None:
    names = ("json", "copy", "schema", "model_dump", "model_validate", "model_fields", "self")
    arguments = Arguments("x", {name: (str, name) for name in names})
    assert arguments.read({"json": "a", "model_validate": "b"}) == {
        **{name: name for name in names},
        "json": "a",
        "model_validate": "b",
    }


@pytest.mark.parametrize("parameters", [{"x": (object(), ...)}, {"x": (Arguments, ...)}])
def test_a_signature_without_a_json_schema_is_refused(parameters: Any) -> None:
    with pytest.raises(UsageError, match="its signature has no JSON schema"):
        Arguments("x", parameters)


def test_a_result_is_copied() -> None:
    returned = {"rows": [{"a": (1, 2.5)}], "b": None}
    copied: Any = to_plain(returned)
    assert copied == {"rows": [{"a": [1, 2.5]}], "b": None} and copied["rows"] is not returned["rows"]
