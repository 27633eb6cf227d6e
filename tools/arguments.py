"""What a tool's function takes: the JSON Schema of its signature, and its arguments out of JSON.

pydantic decides both. Most tools take texts, numbers, truth values, lists of them, and None instead of one. What it
makes of those is known, so the schema is written here, and a value that is of its annotated type passes as it is. All
else goes through pydantic, which is imported then: it takes a third of a command that continues an execution.
"""

from collections.abc import Mapping
from functools import cached_property
from math import isfinite
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import msgspec

from planwarden.agent.common.struct import JsonValue

if TYPE_CHECKING:
    from pydantic import BaseModel

_TYPES: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_EXACT_INTEGERS = 2**53
"""Up to here a float is the same number as the integer."""

Parameters = Mapping[str, tuple[Any, Any]]
"""Annotation and default of each parameter; the default is `...` for none."""


class Arguments:
    """The keyword arguments of one function."""

    def __init__(self, tool_name: str, parameters: Parameters) -> None:
        """Raises `UsageError` for a signature that has no JSON Schema."""
        self._tool_name, self._parameters = tool_name, parameters
        self._plain = _find_plain_parameters(parameters)
        self.schema = _write_schema(self._plain) if self._plain is not None else self._build_schema()

    @cached_property
    def _model(self) -> "type[BaseModel]":
        from planwarden.tools.argument_model import build_model

        return build_model(self._tool_name, self._parameters)

    def _build_schema(self) -> dict[str, JsonValue]:
        from planwarden.tools.argument_model import build_schema

        return build_schema(self._model)

    def read(self, arguments: dict[str, JsonValue]) -> dict[str, Any]:
        """Returns a value for each parameter. Raises `pydantic.ValidationError` for arguments that do not fit."""
        if self._plain is not None:
            try:
                return _read_plain(arguments, self._plain)
            except _NotPlain:
                pass
        parsed = self._model.model_validate(arguments)
        return {name: getattr(parsed, name) for name in self._parameters}


class _NotPlain(Exception):
    """Only pydantic knows what becomes of the arguments."""


class _Parameter(msgspec.Struct, frozen=True):
    """A parameter whose schema and values are known without pydantic."""

    kind: type
    is_list: bool
    is_optional: bool
    default: Any

    def write_schema(self) -> dict[str, JsonValue]:
        entry: dict[str, JsonValue] = {"type": _TYPES[self.kind]}
        if self.is_list:
            entry = {"items": entry, "type": "array"}
        if self.is_optional:
            entry = {"anyOf": [entry, {"type": "null"}]}
        if self.default is not ...:
            entry["default"] = self.default
        # As pydantic does.
        return dict(sorted(entry.items()))

    def read(self, value: JsonValue) -> object:
        """Raises `_NotPlain` for a value that is not of the very type."""
        if value is None and self.is_optional:
            return None
        if not self.is_list:
            return self._read_one(value)
        if type(value) is not list:
            raise _NotPlain
        return [self._read_one(part) for part in value]

    def _read_one(self, value: object) -> object:
        if type(value) is self.kind and _is_json(value):
            return value
        if self.kind is float and type(value) is int and abs(value) <= _EXACT_INTEGERS:
            return float(value)
        raise _NotPlain


def _find_plain_parameters(parameters: Parameters) -> dict[str, _Parameter] | None:
    """Returns the parameters; None when one is not plain."""
    found: dict[str, _Parameter] = {}
    for name, (annotation, default) in parameters.items():
        parameter = _find_plain_parameter(annotation, default)
        # pydantic refuses such names.
        if parameter is None or name.startswith("_"):
            return None
        found[name] = parameter
    return found


def _find_plain_parameter(annotation: Any, default: Any) -> _Parameter | None:
    is_optional = get_origin(annotation) in (Union, UnionType) and get_args(annotation)[1:] == (NoneType,)
    kind = get_args(annotation)[0] if is_optional else annotation
    is_list = get_origin(kind) is list
    if is_list:
        [kind] = get_args(kind)
    if type(kind) is not type or kind not in _TYPES:
        return None
    # pydantic writes other defaults in its own way, and a list may change.
    may_be_left_out = default is None if is_list or default is None else type(default) is kind and _is_json(default)
    if default is not ... and not (may_be_left_out and (is_optional or default is not None)):
        return None
    return _Parameter(kind, is_list, is_optional, default)


def _is_json(value: object) -> bool:
    """False for half of a surrogate pair, and for what is no number."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return not isinstance(value, float) or isfinite(value)


def _write_schema(parameters: Mapping[str, _Parameter]) -> dict[str, JsonValue]:
    properties: dict[str, JsonValue] = {name: found.write_schema() for name, found in parameters.items()}
    required: list[JsonValue] = [name for name, found in parameters.items() if found.default is ...]
    schema: dict[str, JsonValue] = {"additionalProperties": False, "properties": properties}
    if required:
        schema["required"] = required
    return {**schema, "type": "object"}


def _read_plain(arguments: dict[str, JsonValue], parameters: Mapping[str, _Parameter]) -> dict[str, Any]:
    if not arguments.keys() <= parameters.keys():
        raise _NotPlain
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if name in arguments:
            values[name] = parameter.read(arguments[name])
        elif parameter.default is ...:
            raise _NotPlain
        else:
            values[name] = parameter.default
    return values
