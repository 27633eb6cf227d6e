"""The defaults of a JSON Schema, filled into a value and into all objects in it, with bounded work."""

from collections.abc import Iterator, Mapping
from typing import cast

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.schema_cost import MAX_DEPTH, Subschema, find_target
from planwarden.agent.common.struct import JsonValue

_FILL_UNITS = 75
"""The work of applying one schema to one value, or of adding one default, in units."""
_LOOK_UNITS = 10
"""The work of looking at one schema, property or value, or at one byte of a default, in units."""
_TYPES: dict[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
"""The names that schemas give to types of JSON values; values of all other types are numbers."""


def read_properties(schema: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return the properties that a schema of objects names."""
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def read_defaults(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the defaults that a schema of objects has for its properties."""
    parts = read_properties(schema).items()
    return {name: part["default"] for name, part in parts if isinstance(part, dict) and "default" in part}


class TooMuchWork(Exception):
    """Filling in the defaults of a value takes more work than is allowed."""


class Filling:
    """Fills in the defaults of one value and of all objects in it, with limited work."""

    def __init__(self, root: Subschema, work: int) -> None:
        self._root, self._work_left = root, work
        self._applied: dict[tuple[int, ...], tuple[list[Subschema], dict[str, Subschema]]] = {}
        """Results of `_apply`, keyed by whether the value is an object and by the identities of the schemas."""

    def fill_in(
        self, value: Subschema | list[JsonValue], schemas: list[JsonValue], used: tuple[int | None, ...] = ()
    ) -> JsonValue:
        """Return the value with the defaults of `schemas`, which all apply to it, and of the schemas of its parts.

        Return the same object if no default is missing. `used` has an entry for each level above: the identity of the
        property whose default filled that level, or None. No property adds its default inside itself, so the recursion
        ends. Raises `TooMuchWork`.
        """
        applied, defaults = self._apply(value, schemas)
        if len(used) >= MAX_DEPTH:
            raise TooMuchWork
        self._spend(_LOOK_UNITS * (len(value) + len(defaults)))
        parts: dict[str | int, JsonValue] = {**value} if isinstance(value, dict) else dict(enumerate(value))
        added: dict[str | int, int] = {}
        for name, child in defaults.items():
            if name not in parts and id(child) not in used:
                self._spend(_FILL_UNITS + _LOOK_UNITS * measure_at_least(child["default"], self._work_left))
                parts[name], added[name] = child["default"], id(child)
        has_changed = bool(added)
        for key, part in parts.items():
            if isinstance(part, dict | list):
                self._spend(_FILL_UNITS + _LOOK_UNITS * len(applied))
                below = [_find_part(schema, key) for schema in applied]
                parts[key] = self.fill_in(part, below, (*used, added.get(key)))
                has_changed |= parts[key] is not part
        if not has_changed:
            return value
        return cast("JsonValue", parts) if isinstance(value, dict) else list(parts.values())

    def _spend(self, units: int) -> None:
        self._work_left -= units
        if self._work_left < 0:
            raise TooMuchWork

    def _apply(self, value: JsonValue, schemas: list[JsonValue]) -> tuple[list[Subschema], dict[str, Subschema]]:
        """Return the schemas with all others that they apply to the value, and the properties with usable defaults."""
        memo_key = (isinstance(value, dict), *map(id, schemas))
        if memo_key not in self._applied:
            applied, defaults = self._applied[memo_key] = [], {}
            stack = [*schemas]
            while stack:
                schema = stack.pop()
                if isinstance(schema, dict):
                    properties = read_properties(schema if isinstance(value, dict) else {})
                    self._spend(_FILL_UNITS + _LOOK_UNITS * len(properties))
                    for name, child in properties.items():
                        if isinstance(child, dict) and "default" in child and self._may_fit(child["default"], child):
                            defaults.setdefault(name, child)
                    applied.append(schema)
                    stack += self._list_beside(value, schema)
        return self._applied[memo_key]

    def _list_beside(self, value: JsonValue, schema: Subschema) -> Iterator[JsonValue]:
        """Yield the schemas that this one applies to the value; of a choice, the only branch for the value's type."""
        if "$ref" in schema:
            yield self._follow(schema)
        for keyword in ("allOf", "anyOf", "oneOf"):
            children = schema.get(keyword)
            if isinstance(children, list):
                self._spend(_FILL_UNITS * len(children))
                fitting = [child for child in children if keyword == "allOf" or self._may_fit(value, child)]
                yield from fitting if keyword == "allOf" or len(fitting) == 1 else ()

    def _may_fit(self, value: JsonValue, schema: JsonValue) -> bool:
        """Return whether the schema allows the type of the value."""
        target = self._follow(schema) if isinstance(schema, dict) else schema
        types = target.get("type") if isinstance(target, dict) else None
        names = types if isinstance(types, list) else [types]
        name = _TYPES.get(type(value), "number")
        fits = types is None or name in names or (name == "number" and "integer" in names)
        return fits and target is not False

    def _follow(self, schema: Subschema) -> JsonValue:
        """Return what the schema refers to, or the schema itself if it refers to nothing."""
        reference = schema.get("$ref")
        return find_target(self._root, reference) if isinstance(reference, str) else schema


def _find_part(schema: Subschema, key: str | int) -> JsonValue:
    """Return the subschema for the part of a value with this name or place; None if there is none."""
    if isinstance(key, str):
        properties = read_properties(schema)
        return properties[key] if key in properties else schema.get("additionalProperties")
    items = schema.get("items")
    places = schema.get("prefixItems", items)
    return places[key] if isinstance(places, list) and key < len(places) else items
