"""Inputs: the values that a run of a plan is given. The plan's own schema checks them before anything happens."""

import json
from collections.abc import Iterator, Mapping

from planwarden.agent.common.canonical import check_depth, is_larger
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.form import SentForm
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.schema_defaults import read_defaults, read_properties
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES

MAX_SCHEMA_BYTES = 64 * 1024
_KEYWORDS = frozenset(
    ("type", "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "description")
) | frozenset(("allOf", "anyOf", "oneOf", "not", "if", "const", "enum", "$schema", "$defs", "$ref", "title", "default"))
"""Keywords of a JSON Schema for an object; if `inputs` has none of them, it was not meant as a schema."""


def find_inputs_faults(schema: dict[str, JsonValue]) -> Iterator[str]:
    """Yield what is wrong with the `inputs` of a plan, one sentence each."""
    if is_larger(schema, MAX_SCHEMA_BYTES):
        yield f"inputs is larger than {MAX_SCHEMA_BYTES} bytes"
        return
    if schema and not _KEYWORDS & schema.keys():
        properties = {name[:64]: {"type": "string"} for name in list(schema)[:3]}
        example = json.dumps({"type": "object", "properties": properties})
        yield f"inputs must be the JSON Schema of an object, such as {example}"
        return
    if schema.get("type", "object") != "object":
        yield 'inputs must be the JSON Schema of an object: its "type" is "object"'
    try:
        Schema(schema)
    except ValueError as error:
        yield f"inputs is not a usable JSON Schema: {error}"


def complete_inputs(
    schema: Mapping[str, JsonValue] | None, inputs: Mapping[str, JsonValue] | None
) -> dict[str, JsonValue]:
    """Return the inputs of a run, with the schema's defaults filled in; empty for a plan that takes no inputs.

    `parse_plan` has already checked `schema`. An input that the schema does not declare is refused, unless the
    schema's `additionalProperties` allows it. Some clients send null for an absent input, or JSON as text. If the
    `type` of the input excludes null, null counts as absent. If the `type` is object or array, text is parsed.

    Raises:
        InvalidArguments: the inputs are too large, the plan takes none, or they do not fit the schema (then
            `details.problems` has at most `MAX_FAULTS` faults, as set in `agent.common.schema`).
        LimitExceeded: the inputs are nested too deeply.
    """
    values = dict(inputs or {})
    if schema is None:
        if values:
            names = ", ".join(repr(name[:64]) for name in list(values)[:10])
            raise InvalidArguments(f"the plan takes no inputs, but was given {names}; leave them out")
        return {}
    values = dict(_tidy(schema, values))
    check_depth(values)
    if is_larger(values, MAX_ARGUMENT_BYTES):
        raise InvalidArguments(f"the inputs are larger than {MAX_ARGUMENT_BYTES} bytes")
    values |= {name: default for name, default in read_defaults(schema).items() if name not in values}
    faults = [f"inputs: {fault}" for fault in Schema(close_schema(schema), checks_dates=True).find_faults(values)]
    if faults:
        raise InvalidArguments(
            "; ".join(faults[:10]), details={"problems": list[JsonValue](faults), "inputs": dict(schema)}
        )
    return values


def _tidy(schema: Mapping[str, JsonValue], inputs: Mapping[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    """Yield names and values: drop null that the `type` excludes, and parse text if the `type` is object or array."""
    properties = read_properties(schema)
    for name, value in inputs.items():
        part = properties.get(name)
        kind = part.get("type") if isinstance(part, dict) else None
        if value is not None or not isinstance(kind, str | list) or "null" in kind:
            yield name, SentForm({"type": kind}).tidy(value)


def close_schema(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a copy of the schema that refuses undeclared properties, unless `additionalProperties` allows them."""
    return {"type": "object", "additionalProperties": False, **schema}
