"""The most that checking a value against a JSON Schema can cost, computed before the check.

The check runs in native code, which no cancel scope can stop, while everything else in the process waits. References
multiply: 32 definitions that each refer to the next one twice take 2**32 steps. `SchemaCost` reads each subschema once
and computes its load: the most work that it takes for one value, at any place. The load times the size of a value
is the most that the check can take. A unit of work is about 20 ns, as measured with `jsonschema-rs`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from planwarden.agent.common.struct import JsonValue

MAX_STEPS = 20_000
"""The most steps that following references may take when a schema is accepted, and again for each depth of a value."""
MAX_PARTS = 10_000
"""The most parts of a schema as written, with no reference followed."""
MAX_PATTERNS = 500
MAX_PATTERN_CHARS = 4_096
MAX_NESTING = 200
MAX_INTEGER_BITS = 1_000
"""The most bits of an integer in a schema or in a checked value: the library calculates with all digits."""
MAX_VALUES = 100_000
"""The most values in one value that is checked: counting more takes too long."""
MAX_DEPTH = 64
_MOST = 1e12
"""The most units that are counted; a larger number becomes this one."""
_PASSES = 4
"""How often the check applies the keywords next to an `unevaluated...`; if these are nested, the factors multiply."""
_CONSTANT = 20
"""Units of comparing a value with one constant, where the library cannot look the value up."""
_FRACTION = 200
"""Units of comparing a number with a fraction: the library compares them exactly."""

_BESIDE = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"))
"""Keywords whose subschemas are applied to the same value."""
_BELOW = frozenset(
    ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames")
) | {"prefixItems", "items", "additionalItems", "unevaluatedItems", "contains"}
"""Keywords whose subschemas are applied to parts of the value."""
_BY_NAME = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies"))
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_UNITS = {
    **dict.fromkeys(("title", "description", "default", "examples", "$defs", "definitions", "$schema", "$comment"), 0),
    "format": 10,
    "uniqueItems": 6,
}
"""Units of work of each keyword that does not take exactly one unit."""

Subschema = dict[str, JsonValue]
Name = str | int | None


class Load(NamedTuple):
    """The most units of work that a schema takes for one value, wherever the value is."""

    values: float = 0
    """For each value and each key."""
    numbers: float = 0
    """For each float or long integer, and again for each 64 of the float's binary exponent or of the integer's bits."""
    text: float = 0
    """For each byte of text."""


class ValueSize(NamedTuple):
    """The counts by which a load is multiplied for one value, and how deeply the value is nested."""

    values: int
    numbers: int
    text: int
    depth: int


class _Part(NamedTuple):
    own: Load
    """The load of this subschema alone, without those beside and below it."""
    passes: int
    beside: list[Subschema]
    below: list[tuple[Name, Subschema]]
    """The subschemas for parts of the value, each with the name or the place of its part; None for every part."""


class SchemaCost:
    """What a check against one schema costs, by the size of the value."""

    def __init__(self, root: Subschema, measure_pattern: Callable[[str], float]) -> None:
        """Read the schema. `measure_pattern` returns the units that matching a pattern takes for each byte of text.

        Raises `ValueError`: a check could take unlimited time, or a reference leads nowhere or out of the schema.
        """
        _check_parts(root)
        self._root = root
        self._measure_pattern = measure_pattern
        self._parts: dict[int, _Part] = {}
        """By the identity of the subschema."""
        self._closures: dict[int, Counter[int]] = {}
        """By subschema: how often checking a value against it once applies it and each subschema beside it."""
        self._loads: dict[int, Load | None] = {}
        """The load of the whole schema, by the depth of the value; None if computing it takes too many steps."""
        self._steps = 0
        self.has_branches = False
        self.constants_bytes = 0
        """The size of the longest list of constants."""
        schemas = [root]
        while schemas:
            schema = schemas.pop()
            if id(schema) not in self._parts:
                part = self._parts[id(schema)] = self._read(schema)
                schemas += [*part.beside, *(child for _, child in part.below)]
        for key in self._parts:
            if self._close(key, ()).total() > MAX_STEPS:
                raise _TooManySteps

    def find_load(self, depth: int) -> Load:
        """Return the load for values of that depth."""
        if depth not in self._loads:
            self._steps = 0
            try:
                self._loads[depth] = self._find_load(id(self._root), depth, {})
            except _TooManySteps:
                self._loads[depth] = None
        return self._loads[depth] or Load(_MOST)

    def estimate(self, size: ValueSize) -> float:
        """Return the units of work that checking a value of that size takes at most."""
        return _multiply(self.find_load(size.depth), size)

    def estimate_object(self, sizes: Mapping[str, ValueSize]) -> float:
        """Return the units for an object whose properties have these sizes.

        This is less than `estimate` returns if, say, one property has a pattern and another one has long text.
        """
        depth = 1 + max((size.depth for size in sizes.values()), default=0)
        if self.find_load(depth).values == _MOST:
            return _MOST
        here, anywhere, by_name = self._spread(id(self._root), depth, {})
        keys = ValueSize(len(sizes) + 1, 0, sum(map(len, sizes)), 1)
        parts = (_multiply(_add(anywhere, by_name.get(name, Load())), size) for name, size in sizes.items())
        return _multiply(_add(here, anywhere), keys) + sum(parts)

    def _read(self, schema: Subschema) -> _Part:
        part = _Part(Load(1), 1, [], [])
        for keyword, value in schema.items():
            if keyword in ("$id", "id") and isinstance(value, str) and schema is not self._root:
                # An id would change the base of the references inside its subschema.
                raise ValueError(f"it has an {keyword} inside: {value[:100]!r}")
            if keyword in _REFERENCES and isinstance(value, str):
                target = find_target(self._root, value)
                part.beside.extend([target] if isinstance(target, dict) else ())
            elif keyword in _BESIDE:
                self.has_branches |= keyword in ("anyOf", "oneOf")
                part.beside.extend(child for _, child in _list_children(keyword, value))
            elif keyword in _BELOW:
                part.below.extend(_list_children(keyword, value))
            part = part._replace(own=_add(part.own, self._measure(keyword, value)))
        return part._replace(passes=_PASSES if any(name.startswith("unevaluated") for name in schema) else 1)

    def _measure(self, keyword: str, value: JsonValue) -> Load:
        """Return the load of a keyword, without the subschemas that it applies to the value or to parts of it."""
        units = _UNITS.get(keyword, 1)
        match keyword, value:
            case "pattern", str():
                return Load(units, text=self._measure_pattern(value))
            case "patternProperties", dict():
                return Load(units, text=sum(map(self._measure_pattern, value)))
            case "minLength" | "maxLength", _:
                return Load(units, text=0.01)
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", _:
                return Load(15 if isinstance(value, float) else units, _FRACTION / 2)
            case "multipleOf", _:
                return Load(_FRACTION if isinstance(value, float) else units, _FRACTION)
            case "enum" | "const", _:
                return self._measure_constants(value if isinstance(value, list) and keyword == "enum" else [value])
            case "required", list():
                return Load(units + len(value) / 2)
            case (("dependentRequired" | "dependentSchemas" | "dependencies"), dict()):
                return Load(units + 2 * len(value))
            case _:
                return Load(units)

    def _measure_constants(self, constants: list[JsonValue]) -> Load:
        self.constants_bytes = max(self.constants_bytes, len(repr(constants)))
        kinds = Counter(type(constant) for constant in walk(constants))
        numbers = kinds[int] + kinds[float]
        # The library looks up constants that are all texts or all integers, instead of comparing each.
        is_slow = kinds[list] + kinds[dict] > 1 or kinds[float] or (kinds[int] and len(kinds) > 2)
        units = _CONSTANT * kinds.total() + _FRACTION * kinds[float] if is_slow else 10 if numbers else 1
        return Load(units, numbers * _FRACTION)

    def _close(self, key: int, above: tuple[int, ...]) -> Counter[int]:
        if key in above:
            raise ValueError("one of its references leads back to itself")
        if len(above) > MAX_NESTING:
            raise ValueError(f"it is nested deeper than {MAX_NESTING} levels")
        if key not in self._closures:
            part = self._parts[key]
            closure = Counter({key: part.passes})
            for child in part.beside:
                inner = self._close(id(child), (*above, key))
                self._step(len(inner))
                for other, times in inner.items():
                    closure[other] += times * part.passes
            self._closures[key] = closure
        return self._closures[key]

    def _find_load(self, key: int, depth: int, memo: dict[tuple[int, int], Load]) -> Load:
        if (key, depth) not in memo:
            here, anywhere, by_name = self._spread(key, depth, memo)
            memo[key, depth] = _take_most((here, _add(anywhere, _take_most(by_name.values()))))
        return memo[key, depth]

    def _spread(self, key: int, depth: int, memo: dict[tuple[int, int], Load]) -> tuple[Load, Load, dict[Name, Load]]:
        """Return the load for the value itself, for each of its parts, and what parts of certain names add to that."""
        here, anywhere = Load(), Load()
        by_name: dict[Name, Load] = {}
        for other, times in self._closures[key].items():
            part = self._parts[other]
            self._step(1 + len(part.below))
            here = _add(here, part.own, times)
            for name, child in part.below if depth else ():
                load = self._find_load(id(child), depth - 1, memo)
                if name is None:
                    anywhere = _add(anywhere, load, times)
                else:
                    by_name[name] = _add(by_name.get(name, Load()), load, times)
        return here, anywhere, by_name

    def _step(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise _TooManySteps


class _TooManySteps(ValueError):
    def __str__(self) -> str:
        return f"following its references takes more than {MAX_STEPS} steps"


def _check_parts(root: JsonValue) -> None:
    """Raise `ValueError` for a schema that would take too long to compile, whether or not all of it is applied."""
    patterns: list[str] = []
    for parts, node in enumerate(walk(root)):
        if parts >= MAX_PARTS:
            raise ValueError(f"it has more than {MAX_PARTS} parts")
        if isinstance(node, int) and node.bit_length() > MAX_INTEGER_BITS:
            raise ValueError(f"it has an integer of more than {MAX_INTEGER_BITS} bits")
        if isinstance(node, dict):
            pattern_properties = node.get("patternProperties")
            patterns += pattern_properties if isinstance(pattern_properties, dict) else ()
            patterns += [pattern] if isinstance(pattern := node.get("pattern"), str) else []
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"it has more than {MAX_PATTERNS} patterns")
    if max(map(len, patterns), default=0) > MAX_PATTERN_CHARS:
        raise ValueError(f"one of its patterns is longer than {MAX_PATTERN_CHARS} characters")


def find_target(root: JsonValue, reference: str) -> JsonValue:
    """Return what the reference points to. A reference is `#`, or `#` followed by a JSON Pointer.

    Raises `ValueError`: it leads nowhere or out of the schema, or is an anchor, which only a full search would find.
    """
    if not reference.startswith("#"):
        raise ValueError(f"remote reference {reference[:100]!r} is not followed")
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(f"reference {reference[:100]!r} is not a JSON Pointer")
    node = root
    for part in unquote(reference[2:]).split("/") if reference != "#" else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdigit() and int(key[:9]) < len(node):
            node = node[int(key[:9])]
        else:
            raise ValueError(f"reference {reference[:100]!r} leads nowhere")
    return node


def measure_value(value: JsonValue) -> ValueSize:
    """Return the size of a value. Raises `ValueError` with a sentence if the library cannot check the value."""
    values = numbers = text = depth = 0
    level = [value]
    while level:
        values += len(level)
        depth += 1
        below: list[JsonValue] = []
        for node in level:
            if values + len(below) > MAX_VALUES or depth > MAX_DEPTH:
                raise ValueError(f"it has more than {MAX_VALUES} values, or more than {MAX_DEPTH} levels")
            if isinstance(node, str):
                text += _measure_text(node)
            elif isinstance(node, dict):
                values += len(node)
                text += sum(map(_measure_text, node))
                below += node.values()
            elif isinstance(node, list):
                below += node
            elif isinstance(node, float):
                numbers += 1 + abs(math.frexp(node)[1]) // 64
            elif isinstance(node, int) and (bits := node.bit_length()) > 48:
                if bits > MAX_INTEGER_BITS:
                    raise ValueError(f"it has an integer of more than {MAX_INTEGER_BITS} bits")
                numbers += 1 + bits // 64
        level = below
    return ValueSize(values, numbers, text, depth)


def _measure_text(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        # JSON can escape half a surrogate pair, but the library reads UTF-8, which cannot encode such a half.
        raise ValueError("the value contains text that is not Unicode: half of a surrogate pair") from None


def _list_children(keyword: str, value: JsonValue) -> Iterator[tuple[Name, Subschema]]:
    """Yield the subschemas of a keyword, with the name or the place of the part that each is applied to."""
    if isinstance(value, dict) and keyword not in _BY_NAME:
        yield None, value
    elif isinstance(value, dict | list):
        for name, child in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(child, dict):
                yield (None if keyword == "patternProperties" else name), child


def walk(value: JsonValue) -> Iterator[JsonValue]:
    """Yield a value and everything in it except the keys."""
    stack = [value]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())


def _add(one: Load, other: Load, times: float = 1) -> Load:
    return Load(*(min(a + b * times, _MOST) for a, b in zip(one, other, strict=True)))


def _take_most(loads: Iterable[Load]) -> Load:
    return Load(*map(max, zip(Load(), *loads, strict=True)))


def _multiply(load: Load, size: ValueSize) -> float:
    return sum(rate * count for rate, count in zip(load, size[:-1], strict=True))
