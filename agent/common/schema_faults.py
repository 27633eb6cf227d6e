"""What a JSON Schema check finds wrong with a value, in sentences, even while parts of the value are not known.

The checker sees null in place of unknown parts. A fault counts only if the value has it whatever these parts will be. A
fault that may depend on them, such as one in the branch of an `if`, does not count.
"""

from collections.abc import Collection, Iterable, Iterator

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind as Kind
from pydantic import JsonValue

MAX_MESSAGE_CHARS = 300
_MAX_NAMES = 20
_CERTAIN = frozenset(
    ("additionalItems", "additionalProperties", "falseSchema", "maxItems", "maxProperties", "minItems", "minProperties")
) | {"propertyNames", "required", "type"}
"""Keywords whose faults do not depend on the values in a list or an object."""
_FORMAT_EXAMPLES = {"date": "; write it like 2026-07-31", "date-time": "; write it like 2026-07-31T09:00:00Z"}
_CONDITIONAL = frozenset(("then", "else"))

Path = tuple[str | int, ...]


class UnknownParts:
    """The parts of a value that are not known yet."""

    def __init__(self, paths: Collection[Path]) -> None:
        self._paths = frozenset(paths)
        self._above = frozenset(path[:length] for path in paths for length in range(len(path)))

    def __bool__(self) -> bool:
        return bool(self._paths)

    def is_certain(self, error: jsonschema_rs.ValidationError) -> bool:
        """Return whether the value has this fault whatever its unknown parts will be."""
        if not self:
            return True
        where = tuple(error.instance_path)
        if any(where[:length] in self._paths for length in range(len(where) + 1)):
            return False
        if not _CONDITIONAL.isdisjoint((*error.schema_path, *error.evaluation_path)):
            return False
        if where not in self._above or error.kind.name in _CERTAIN:
            return True
        branches = _list_branches(error)
        return bool(branches) and all(any(map(self.is_certain, branch)) for branch in branches)


def describe_faults(
    errors: Iterable[jsonschema_rs.ValidationError], unknown: UnknownParts, schema: JsonValue
) -> Iterator[str]:
    """Yield a sentence for each fault that is certain, with what is wanted instead."""
    for error in errors:
        if unknown.is_certain(error):
            yield from _describe(error, unknown, schema)


def _describe(error: jsonschema_rs.ValidationError, unknown: UnknownParts, schema: JsonValue) -> Iterator[str]:
    certain = [[inner for inner in branch if unknown.is_certain(inner)] for branch in _list_branches(error)]
    # The writer did not mean a branch of `anyOf` or `oneOf` that is for another type of value.
    meant = [branch for branch in certain if not _is_of_other_type(branch, error.instance_path)]
    if len(meant) == 1 and meant[0]:
        for inner in meant[0]:
            yield from _describe(inner, unknown, schema)
        return
    where = "".join(f"/{part}" for part in error.instance_path)
    message = error.message
    if certain and not meant:
        kinds = (branch[0].kind for branch in certain)
        types = dict.fromkeys(name for kind in kinds if isinstance(kind, Kind.Type) for name in kind.types)
        message = f"it is not of type {' or '.join(types)}"
    elif error.kind.name == "additionalProperties":
        message += _name_properties(error, schema)
    elif isinstance(error.kind, Kind.Format):
        message += _FORMAT_EXAMPLES.get(error.kind.format, "")
    yield f"{where}: {message[:MAX_MESSAGE_CHARS]}" if where else message[:MAX_MESSAGE_CHARS]


def _is_of_other_type(branch: list[jsonschema_rs.ValidationError], where: list[str | int]) -> bool:
    return bool(branch) and branch[0].kind.name == "type" and branch[0].instance_path == where


def _list_branches(error: jsonschema_rs.ValidationError) -> list[list[jsonschema_rs.ValidationError]]:
    """Return the faults that each branch of an `anyOf` or `oneOf` finds; empty for a fault of another kind."""
    kind = error.kind
    return kind.context if isinstance(kind, Kind.AnyOf | Kind.OneOfNotValid) else []


def _name_properties(error: jsonschema_rs.ValidationError, schema: JsonValue) -> str:
    """Return which properties the object can have, as the end of a sentence; empty text if the schema does not say."""
    node = schema
    for part in error.schema_path[:-1]:
        if isinstance(node, dict):
            node = node.get(str(part))
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
    properties = node.get("properties") if isinstance(node, dict) else None
    if not isinstance(properties, dict):
        return ""
    names = ", ".join(repr(name[:64]) for name in list(properties)[:_MAX_NAMES])
    return f"; it takes {names}" if names else "; it takes none"
