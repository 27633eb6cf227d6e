"""The cost of checking a value against a JSON Schema, estimated before the schema is compiled.

The check runs in native code, which no cancel scope can stop, while everything else in the process waits. References
multiply: 32 definitions that each refer to the next one twice take 2**32 steps. `estimate_cost` follows each reference
once, within a limit, and compiles nothing. It refuses schemas whose compilation alone would take too long. What a check
costs then depends on the value as well, see `planwarden.agent.common.schema_work`.
"""

from collections import Counter
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from planwarden.agent.common.struct import JsonValue

MAX_NODES = 20_000
"""Subschemas, keywords and values that one walk may visit, including those behind references."""
MAX_PARTS = 10_000
"""Parts of a schema as it is written."""
MAX_PATTERNS = 500
MAX_PATTERN_CHARS = 4_096
MAX_NESTING = 200
EXTREME = 1_500
"""Units of comparing a very large or very small number with a bound or a constant."""
MAX_INTEGER_BITS = 1_000
"""Of integers in schemas and in the values that they check. The library calculates with all digits."""
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
"""Keywords whose keys are names, not keywords."""
_NOT_APPLIED = frozenset({"$defs", "definitions", "default", "examples"})
"""Keywords not applied where they stand: definitions cost something only behind a reference, values nothing."""
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
NUMERIC = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_REPEATED = ("unevaluatedProperties", "unevaluatedItems")
_REPEATS = 8
"""How often the check goes through what stands beside an `unevaluated...`; nested ones multiply."""


class SchemaCost(msgspec.Struct, frozen=True):
    """What a check costs, before the value is known."""

    nodes: int
    """Nodes visited if every reference is followed once."""
    returns: int
    """References that lead back to themselves."""
    work: int = 0
    """Units of applying each of the nodes once; see `planwarden.agent.common.schema_work`."""
    numeric: int = 0
    """Keywords among the nodes that compare numbers."""
    patterns: Counter[str] = msgspec.field(default_factory=Counter[str])
    """How often each regular expression is met."""


def estimate_cost(schema: JsonValue) -> SchemaCost:
    """Returns the cost of a schema.

    Raises:
        ValueError: a check could take practically unlimited time, or a reference leads nowhere or out of the schema.
    """
    _check_parts(schema)
    walk = _SchemaWalk(schema)
    walk.visit(schema, (), 0)
    for pattern in walk.patterns:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise ValueError(f"one of its patterns is longer than {MAX_PATTERN_CHARS} characters")
    return SchemaCost(walk.nodes, walk.returns, walk.nodes + walk.extra, walk.numeric, walk.patterns)


def _check_parts(schema: JsonValue) -> None:
    """Raises `ValueError` for a schema that would take too long to compile, whether or not all of it is applied."""
    stack, parts, patterns = [schema], 0, 0
    while stack:
        node = stack.pop()
        parts += 1
        if isinstance(node, dict):
            patterns += "pattern" in node
            named = node.get("patternProperties")
            patterns += len(named) if isinstance(named, dict) else 0
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
        elif isinstance(node, int) and node.bit_length() > MAX_INTEGER_BITS:
            raise ValueError(f"it has an integer of more than {MAX_INTEGER_BITS} bits")
        if parts + len(stack) > MAX_PARTS:
            raise ValueError(f"it has more than {MAX_PARTS} parts")
        if patterns > MAX_PATTERNS:
            raise ValueError(f"it has more than {MAX_PATTERNS} patterns")


class _SchemaWalk:
    def __init__(self, root: JsonValue) -> None:
        self._root = root
        self.nodes = 0
        self.returns = 0
        self.extra = 0
        self.numeric = 0
        self.patterns: Counter[str] = Counter()

    def visit(self, node: JsonValue, path: tuple[str, ...], nesting: int) -> None:
        """`path` holds the references that led here."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ValueError(f"following its references takes more than {MAX_NODES} steps")
        if nesting > MAX_NESTING:
            raise ValueError(f"it is nested deeper than {MAX_NESTING} levels")
        if isinstance(node, list):
            for child in node:
                self.visit(child, path, nesting + 1)
        elif isinstance(node, dict):
            for _ in range(count_passes(node)):
                for keyword, child in node.items():
                    self._visit_keyword(keyword, child, path, nesting + 1)

    def _visit_keyword(self, keyword: str, child: JsonValue, path: tuple[str, ...], nesting: int) -> None:
        if keyword in REFERENCES and isinstance(child, str):
            self._follow(child, path, nesting)
        elif keyword in ("$id", "id") and isinstance(child, str) and nesting > 1:
            # References below it would be relative to it.
            raise ValueError(f"it has an {keyword} inside: {child[:100]!r}")
        elif keyword in _NAMED and isinstance(child, dict):
            if keyword == "patternProperties":
                self.patterns.update(child.keys())
            for named in child.values():
                self.visit(named, path, nesting + 1)
        elif keyword == "pattern" and isinstance(child, str):
            self.nodes += 1
            self.patterns[child] += 1
        elif keyword in ("const", "enum"):
            self.extra += measure_constants(child)
            self.numeric += 1
        elif keyword in NUMERIC:
            self.extra += measure_bound(keyword, child)
            self.numeric += 1
        elif keyword not in _NOT_APPLIED:
            self.visit(child, path, nesting)

    def _follow(self, reference: str, path: tuple[str, ...], nesting: int) -> None:
        if reference in path:
            self.returns += 1
        elif not reference.startswith("#"):
            raise ValueError(f"remote reference {reference[:100]!r} is not followed")
        elif reference == "#":
            self.visit(self._root, (*path, reference), nesting)
        elif reference.startswith("#/"):
            self.visit(find_target(self._root, reference), (*path, reference), nesting)
        else:
            # An anchor: finding its target would need a search through the whole schema.
            raise ValueError(f"reference {reference[:100]!r} is not a JSON Pointer")


def find_target(root: JsonValue, reference: str) -> JsonValue:
    """Returns what the reference, `#` or `#` and a JSON Pointer, names; raises `ValueError` if it leads nowhere."""
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


def count_passes(schema: Mapping[str, JsonValue]) -> int:
    """Returns how often a check goes through the parts of the schema."""
    return _REPEATS if any(keyword in schema for keyword in _REPEATED) else 1


def measure_constants(constants: JsonValue) -> int:
    """Returns the units of comparing a value with all of them. The library compares exact fractions, which is slow."""
    stack, units = [constants], 0
    while stack:
        node = stack.pop()
        units += 600 if isinstance(node, float) else 10 if isinstance(node, int) else 3
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return units


def measure_bound(keyword: str, bound: JsonValue) -> int:
    """Returns the units of comparing a number of ordinary size with a bound."""
    return 100 if keyword == "multipleOf" else 12 if isinstance(bound, float) else 1
