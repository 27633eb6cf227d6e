"""The cost of checking a value against a JSON Schema, estimated before the schema is compiled.

Patterns take linear time in `planwarden.agent.common.schema`, but references do not: 32 definitions that each refer to
the next one twice take 2**32 steps, in native code, which no cancel scope can stop. `estimate_cost` follows each
reference once, within a limit, and compiles nothing. A recursive schema is linear if it refers to itself once per
level. If it does so more often, the cost depends on the depth of the value, and values that are too deep are refused.
"""

from dataclasses import dataclass
from urllib.parse import unquote

from pydantic import JsonValue

MAX_NODES = 20_000
"""Subschemas, keywords and values that one walk may visit, including those behind references."""
MAX_NESTING = 200
MAX_STEPS = 2_000_000
"""Estimated steps of one check."""
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
"""Keywords whose keys are names, not keywords."""
_NOT_APPLIED = frozenset({"$defs", "definitions", "const", "enum", "default", "examples"})
"""Keywords not applied where they stand: definitions cost something only behind a reference, values nothing."""


@dataclass(frozen=True, slots=True)
class SchemaCost:
    """How the cost of a check grows with the depth of the value."""

    nodes: int
    """Nodes visited if every reference is followed once."""
    returns: int
    """References that lead back to themselves."""

    def is_affordable(self, value: JsonValue) -> bool:
        """Whether a check of a value of this depth takes at most `MAX_STEPS`."""
        return self.returns < 2 or self.nodes * self.returns ** _measure_depth(value) <= MAX_STEPS


def estimate_cost(schema: JsonValue) -> SchemaCost:
    """Returns the cost of a schema.

    Raises:
        ValueError: a check could take practically unlimited time, or a reference leads nowhere or out of the schema.
    """
    walk = _SchemaWalk(schema)
    walk.visit(schema, (), 0)
    return SchemaCost(walk.nodes, walk.returns)


class _SchemaWalk:
    def __init__(self, root: JsonValue) -> None:
        self._root = root
        self.nodes = 0
        self.returns = 0

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
            for keyword, child in node.items():
                self._visit_keyword(keyword, child, path, nesting + 1)

    def _visit_keyword(self, keyword: str, child: JsonValue, path: tuple[str, ...], nesting: int) -> None:
        if keyword in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(child, str):
            self._follow(child, path, nesting)
        elif keyword in ("$id", "id") and isinstance(child, str) and nesting > 1:
            # References below it would be relative to it.
            raise ValueError(f"it has an {keyword} inside: {child[:100]!r}")
        elif keyword in _NAMED and isinstance(child, dict):
            for named in child.values():
                self.visit(named, path, nesting + 1)
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
            self.visit(self._find_target(reference), (*path, reference), nesting)
        else:
            # An anchor: finding its target would need a search through the whole schema.
            raise ValueError(f"reference {reference[:100]!r} is not a JSON Pointer")

    def _find_target(self, reference: str) -> JsonValue:
        node = self._root
        for part in unquote(reference[2:]).split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdigit() and int(key[:9]) < len(node):
                node = node[int(key[:9])]
            else:
                raise ValueError(f"reference {reference[:100]!r} leads nowhere")
        return node


def _measure_depth(value: JsonValue) -> int:
    """Returns the levels of containers; does not recurse."""
    depth, level = 0, [value]
    while True:
        deeper: list[JsonValue] = []
        for node in level:
            if isinstance(node, dict):
                deeper.extend(node.values())
            elif isinstance(node, list):
                deeper.extend(node)
        if not deeper:
            return depth
        depth, level = depth + 1, deeper
