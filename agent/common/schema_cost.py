"""What checking a value against a JSON Schema may cost, estimated before it is compiled.

Patterns are linear in `agent/common/schema.py`, but references are not: 32 definitions that each name the next one twice take 2**32
steps, in C, where no cancel scope reaches. So references are followed once here, within a budget, without compiling
anything. A recursive schema is linear as long as it comes back to itself once per level; when it does so more often, the
depth of the value decides, and the check of a value that is too deep for it is refused.
"""

from dataclasses import dataclass
from urllib.parse import unquote

from pydantic import JsonValue

MAX_NODES = 20_000
"""Subschemas, keywords and values that one walk may visit, references followed."""
MAX_NESTING = 200
MAX_STEPS = 2_000_000
"""Of one check, estimated."""
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
"""Keywords whose keys are names, not keywords."""
_NOT_APPLIED = frozenset({"$defs", "definitions", "const", "enum", "default", "examples"})
"""Definitions cost something where they are referred to, and values are compared, not applied."""


@dataclass(frozen=True, slots=True)
class SchemaCost:
    """How the cost of a check grows."""

    nodes: int
    """Visited when every reference is followed once."""
    returns: int
    """References that lead back to where they came from."""

    def is_affordable(self, value: JsonValue) -> bool:
        """Whether a check of the value stays within `MAX_STEPS`, as far as its depth decides."""
        return self.returns < 2 or self.nodes * self.returns ** _measure_depth(value) <= MAX_STEPS


def estimate_cost(schema: JsonValue) -> SchemaCost:
    """The cost of a schema; its references must stay inside of it.

    Raises:
        ValueError: checking a value could take for ever, or a reference leads nowhere or outside.
    """
    walk = _SchemaWalk(schema)
    walk.visit(schema, (), 0)
    return SchemaCost(walk.nodes, walk.returns)


class _SchemaWalk:
    def __init__(self, root: JsonValue) -> None:
        self._root = root
        self.nodes = 0
        self.returns = 0

    def visit(self, node: JsonValue, way: tuple[str, ...], nesting: int) -> None:
        """`way` are the references that led here."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ValueError(f"following its references takes more than {MAX_NODES} steps")
        if nesting > MAX_NESTING:
            raise ValueError(f"it is nested deeper than {MAX_NESTING} levels")
        if isinstance(node, list):
            for child in node:
                self.visit(child, way, nesting + 1)
        elif isinstance(node, dict):
            for keyword, child in node.items():
                self._visit_keyword(keyword, child, way, nesting + 1)

    def _visit_keyword(self, keyword: str, child: JsonValue, way: tuple[str, ...], nesting: int) -> None:
        if keyword in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(child, str):
            self._follow(child, way, nesting)
        elif keyword in ("$id", "id") and isinstance(child, str) and nesting > 1:
            # References below it would start from there.
            raise ValueError(f"it has an {keyword} inside: {child[:100]!r}")
        elif keyword in _NAMED and isinstance(child, dict):
            for named in child.values():
                self.visit(named, way, nesting + 1)
        elif keyword not in _NOT_APPLIED:
            self.visit(child, way, nesting)

    def _follow(self, reference: str, way: tuple[str, ...], nesting: int) -> None:
        if reference in way:
            self.returns += 1
        elif not reference.startswith("#"):
            raise ValueError(f"remote reference {reference[:100]!r} is not followed")
        elif reference == "#":
            self.visit(self._root, (*way, reference), nesting)
        elif reference.startswith("#/"):
            self.visit(self._find_target(reference), (*way, reference), nesting)
        # An anchor; what it names is visited where it stands, and how often it is used cannot be told from here.
        else:
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
    """Levels of containers; walks without recursion."""
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
