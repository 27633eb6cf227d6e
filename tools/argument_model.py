"""What pydantic makes of a signature: a JSON Schema, and values of the annotated types.

Imported for signatures that `arguments.py` does not know by itself, because the import takes a third of a command.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.errors import PydanticUserError

from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.struct import JsonValue


def build_model(tool_name: str, parameters: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Returns a model of the keyword arguments. Raises `UsageError` for a signature that has no JSON Schema."""
    fields: dict[str, Any] = dict(parameters)
    try:
        return create_model(tool_name, __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticUserError as error:
        raise UsageError(f"tool {tool_name!r}: its signature has no JSON schema: {error}") from error


def build_schema(model: type[BaseModel]) -> dict[str, JsonValue]:
    """Returns the JSON Schema of the keyword arguments, without titles that repeat their names."""
    schema: dict[str, JsonValue] = model.model_json_schema()
    schema.pop("title", None)
    properties = schema.get("properties")
    for entry in properties.values() if isinstance(properties, dict) else ():
        if isinstance(entry, dict):
            entry.pop("title", None)
    return schema
