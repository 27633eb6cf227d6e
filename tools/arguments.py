"""What a tool's function takes: the JSON Schema of its signature, and its arguments out of JSON, both by pydantic."""

import warnings
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, create_model
from pydantic.errors import PydanticUserError

from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.struct import JsonValue

Parameters = Mapping[str, tuple[Any, Any]]
"""Annotation and default of each parameter; the default is `...` for none."""


class Arguments:
    """The keyword arguments of one function."""

    def __init__(self, tool_name: str, parameters: Parameters) -> None:
        """Raises `UsageError` for a signature that has no JSON Schema."""
        self._names = tuple(parameters)
        fields: dict[str, Any] = dict(parameters)
        try:
            with warnings.catch_warnings():
                # A parameter may be called `copy` or `json`, as methods of models are: nobody calls those here.
                warnings.filterwarnings("ignore", 'Field name ".*" in ".*" shadows', UserWarning)
                self._model = create_model(
                    tool_name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields
                )
            schema: dict[str, Any] = self._model.model_json_schema()
        except PydanticUserError as error:
            raise UsageError(f"tool {tool_name!r}: its signature has no JSON schema: {error}") from error
        # Titles only repeat names.
        for entry in (schema, *schema["properties"].values()):
            entry.pop("title", None)
        self.schema: dict[str, JsonValue] = schema

    def read(self, arguments: dict[str, JsonValue]) -> dict[str, Any]:
        """Return a value for each parameter. Raises `pydantic.ValidationError` for arguments that do not fit."""
        parsed = self._model.model_validate(arguments)
        return {name: getattr(parsed, name) for name in self._names}
