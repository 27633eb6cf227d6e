"""The work of checking one value against a JSON Schema, counted before it is done.

`count_work` follows the value through the schema as the check would. A unit of work is about 100 ns. Constants cost as
much as they are compared with. Text under a pattern costs its length times the size of the compiled pattern, because
the engine follows all of its states at once in the worst case.
"""

from collections.abc import Iterator, Mapping

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.schema_cost import (
    EXTREME,
    NUMERIC,
    REFERENCES,
    count_passes,
    find_target,
    measure_bound,
    measure_constants,
)

MAX_STOPS = 20_000
"""Pairs of a subschema and a value that one count visits, at one or two microseconds each."""
_ALL_OF = ("allOf", "anyOf", "oneOf")
_ONE = ("not", "if", "then", "else")
_BY_NAME = ("dependentSchemas", "dependencies")
_OF_OBJECTS = ("additionalProperties", "unevaluatedProperties")
_OF_LISTS = ("items", "additionalItems", "unevaluatedItems", "contains")
_OF_PARTS = (*_OF_OBJECTS, *_OF_LISTS, "prefixItems", "propertyNames")
_COUNTED = frozenset(
    ("enum", "const", "uniqueItems", "pattern", "properties", "patternProperties", "propertyNames")
) | {*_ALL_OF, *_ONE, *_BY_NAME, *_OF_PARTS, *REFERENCES, *NUMERIC}
"""Keywords that cost more than a unit."""

_INTEGERS = frozenset[object]((int,))
_TEXTS = frozenset[object]((str,))

Stop = tuple[JsonValue, JsonValue, int]
"""A subschema, a value that it is applied to, and how often."""


def count_work(root: JsonValue, value: JsonValue, pattern_costs: Mapping[str, float], limit: int) -> int | None:
    """Returns the units of work that checking the value takes at most; None for more than `limit`.

    `pattern_costs` has the units that a byte of text costs under each pattern.
    """
    return _WorkCount(root, pattern_costs, limit).run(value)


class _Facts(msgspec.Struct, frozen=True):
    """What does not depend on the value."""

    keywords: int
    is_counted: bool
    passes: int
    beside: tuple[JsonValue, ...]
    """The subschemas that are applied to the same value."""
    constants: tuple[JsonValue, ...]
    kinds: frozenset[object]
    """Of the constants."""
    bounds: int
    """Units of comparing a number with all bounds."""
    numeric: int
    """Keywords that compare numbers."""


class _WorkCount:
    def __init__(self, root: JsonValue, pattern_costs: Mapping[str, float], limit: int) -> None:
        self._root = root
        self._pattern_costs = pattern_costs
        self._limit = limit
        self._facts: dict[int, _Facts] = {}
        """By the identity of the subschema."""
        self._measured: dict[int, int] = {}
        """Units of comparing something with all constants, by the identity of the facts."""

    def run(self, value: JsonValue) -> int | None:
        """Returns the work, or None. Does not recurse."""
        stack: list[Stop] = [(self._root, value, 1)]
        work = 0
        for _ in range(MAX_STOPS):
            if not stack:
                return work
            schema, here, times = stack.pop()
            if not isinstance(schema, dict):
                work += times
                continue
            facts = self._facts.get(id(schema)) or self._read_facts(schema)
            if not facts.is_counted:
                work += times * facts.keywords
                continue
            breadth = _count_below(schema, here) if isinstance(here, dict | list) else 0
            # Whatever is put on the stack takes a stop of its own.
            if len(stack) + breadth > MAX_STOPS:
                return None
            work += times * (breadth + self._charge(schema, facts, here))
            stack.extend((child, here, times * facts.passes) for child in facts.beside)
            if breadth:
                stack.extend((child, part, times * facts.passes) for child, part in _list_below(schema, here))
            if work + len(stack) > self._limit:
                return None
        return None

    def _read_facts(self, schema: dict[str, JsonValue]) -> _Facts:
        constants = _list_constants(schema)
        facts = self._facts[id(schema)] = _Facts(
            keywords=len(schema),
            is_counted=not _COUNTED.isdisjoint(schema),
            passes=count_passes(schema),
            beside=tuple(self._list_beside(schema)),
            constants=constants,
            kinds=frozenset[object](map(type, constants)),
            bounds=sum(measure_bound(keyword, schema[keyword]) for keyword in NUMERIC if keyword in schema),
            numeric=sum(keyword in schema for keyword in (*NUMERIC, "enum", "const")),
        )
        return facts

    def _list_beside(self, schema: dict[str, JsonValue]) -> Iterator[JsonValue]:
        for keyword, child in schema.items():
            if keyword in _ALL_OF and isinstance(child, list):
                yield from child
            elif keyword in _ONE:
                yield child
            elif keyword in _BY_NAME and isinstance(child, dict):
                yield from child.values()
            elif keyword in REFERENCES and isinstance(child, str):
                yield find_target(self._root, child)

    def _charge(self, schema: dict[str, JsonValue], facts: _Facts, value: JsonValue) -> int:
        """Returns the work of the schema's own keywords on this value."""
        work = facts.keywords + (self._compare(facts, value) if facts.constants else 0)
        if isinstance(value, str):
            pattern = schema.get("pattern")
            work += len(value) // 1_000 + (self._match(pattern, value) if isinstance(pattern, str) else 0)
        elif isinstance(value, int | float):
            work += facts.numeric * EXTREME if is_extreme(value) else facts.bounds
        elif isinstance(value, list) and schema.get("uniqueItems") is True:
            work += 5 * count_values(value, self._limit)
        elif isinstance(value, dict):
            required, patterns = schema.get("required"), schema.get("patternProperties")
            work += len(required) // 4 if isinstance(required, list) else 0
            if isinstance(patterns, dict):
                cost = sum(self._pattern_costs.get(pattern, 0) for pattern in patterns)
                work += int(sum(map(len, value)) * 4 * cost)
        return work

    def _compare(self, facts: _Facts, value: JsonValue) -> int:
        """Returns the work of comparing the value with the constants."""
        # The library looks these up.
        if (type(value) is str and facts.kinds == _TEXTS) or (type(value) is int and facts.kinds == _INTEGERS):
            return 2 + (len(value) // 1_000 if isinstance(value, str) else 0)
        if isinstance(value, float | dict | list) or (isinstance(value, int) and facts.kinds != _INTEGERS):
            return self._measure(facts)
        return 2 + len(facts.constants) // 2

    def _measure(self, facts: _Facts) -> int:
        known = self._measured.get(id(facts))
        if known is None:
            known = self._measured[id(facts)] = measure_constants(list(facts.constants))
        return known

    def _match(self, pattern: str, text: str) -> int:
        # A character has at most four bytes.
        return int(len(text) * 4 * self._pattern_costs.get(pattern, 0))


def is_extreme(number: float) -> bool:
    """Whether the library needs tens of microseconds to compare the number."""
    return not -(10**15) < number < 10**15 or 0 < abs(number) < 1e-3


def _list_constants(schema: dict[str, JsonValue]) -> tuple[JsonValue, ...]:
    listed = schema.get("enum")
    constants = tuple(listed) if isinstance(listed, list) else ()
    return (*constants, schema["const"]) if "const" in schema else constants


def _count_below(schema: dict[str, JsonValue], value: dict[str, JsonValue] | list[JsonValue]) -> int:
    """Returns how many parts of the value have to be looked at, at most."""
    count = len(value) * sum(keyword in schema for keyword in _OF_PARTS)
    named, patterns = schema.get("properties"), schema.get("patternProperties")
    if isinstance(named, dict):
        count += min(len(named), len(value)) + len(named) // 4
    return count + (len(value) * len(patterns) if isinstance(patterns, dict) else 0)


def _list_below(schema: dict[str, JsonValue], value: JsonValue) -> Iterator[tuple[JsonValue, JsonValue]]:
    """Yields each subschema that is applied to a part of the value, with that part."""
    if isinstance(value, dict):
        yield from _list_below_object(schema, value)
    elif isinstance(value, list):
        for keyword in ("prefixItems", "items"):
            if isinstance(listed := schema.get(keyword), list):
                yield from zip(listed, value, strict=False)
        for keyword in _OF_LISTS:
            if isinstance(child := schema.get(keyword), dict):
                yield from ((child, part) for part in value)


def _list_below_object(
    schema: dict[str, JsonValue], value: dict[str, JsonValue]
) -> Iterator[tuple[JsonValue, JsonValue]]:
    named, patterns = schema.get("properties"), schema.get("patternProperties")
    known = named if isinstance(named, dict) else {}
    shorter = known if len(known) < len(value) else value
    yield from ((known[key], value[key]) for key in shorter if key in value and key in known)
    for child in patterns.values() if isinstance(patterns, dict) else ():
        yield from ((child, part) for part in value.values())
    for keyword in _OF_OBJECTS:
        if isinstance(child := schema.get(keyword), dict):
            yield from ((child, part) for key, part in value.items() if key not in known)
    if isinstance(child := schema.get("propertyNames"), dict):
        yield from ((child, key) for key in value)


def count_values(value: JsonValue, limit: int) -> int:
    """Returns how many values and keys this one consists of, and one for each KiB of text; stops above the
    limit. A fraction counts twenty times."""
    stack, count = [value], 0
    while stack and count + len(stack) <= limit:
        node = stack.pop()
        count += 1
        if isinstance(node, dict):
            count += len(node)
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
        elif isinstance(node, str):
            count += len(node) >> 10
        elif isinstance(node, float):
            count += 20
    return count + len(stack)
