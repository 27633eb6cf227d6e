"""Inputs of plans as people type them: texts, which the plan's schema makes values of."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from jsonpointer import JsonPointer, JsonPointerException
from pydantic import JsonValue

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments

Schema = Mapping[str, JsonValue]


class PlanInputField(msgspec.Struct, frozen=True):
    """One property of the inputs, for people."""

    name: str
    description: str
    is_required: bool
    """A run has to be given it."""
    schema: dict[str, JsonValue]


def list_input_fields(inputs: Schema | None) -> Iterator[PlanInputField]:
    """Yields the declared properties, in their order."""
    properties = (inputs or {}).get("properties")
    required = (inputs or {}).get("required")
    for name, entry in properties.items() if isinstance(properties, dict) else ():
        schema = _follow(entry, inputs or {})
        said = schema.get("description", schema.get("title"))
        is_required = isinstance(required, list) and name in required and "default" not in schema
        yield PlanInputField(name, said if isinstance(said, str) else "", is_required, schema)


def read_inputs(inputs: Schema | None, given: Iterable[tuple[str, str]]) -> dict[str, JsonValue]:
    """Returns the values of typed texts: JSON, unless the schema takes text there or it is no JSON."""
    schemas = {field.name: field.schema for field in list_input_fields(inputs)}
    return {name: read_value(schemas.get(name), text) for name, text in given}


def read_value(schema: JsonValue, text: str) -> JsonValue:
    """Returns the text where the schema takes text; otherwise the JSON value, or the text when it is not valid JSON."""
    if isinstance(schema, dict) and _takes_text(schema):
        return text
    try:
        return read_json(text)
    except InvalidArguments:
        return text


def _takes_text(schema: Schema) -> bool:
    kind = schema.get("type")
    if kind is None:
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        return isinstance(choices, list) and bool(choices) and all(isinstance(choice, str) for choice in choices)
    return kind == "string" or (isinstance(kind, list) and "string" in kind)


def _follow(schema: JsonValue, root: Schema) -> dict[str, JsonValue]:
    """Returns the schema that a reference within the inputs leads to, once; what stands beside it wins."""
    if not isinstance(schema, dict):
        return {}
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    try:
        found = JsonPointer(reference[1:]).resolve(root)
    except JsonPointerException:
        return schema
    return {**found, **schema} if isinstance(found, dict) else schema
