"""The inputs of plans within a plan: a `use` step gives them, and the steps that stand in its place take them.

`{"$from": "remind.inputs", "pointer": "/customer"}` takes a part of the scope `remind.inputs`, which may hold bindings
of the enclosing plan. Only those are followed to which the pointer leads: a step that takes `/customer` does not wait
for the step that finds `/amount`. A scope binds steps and the scopes around it, so no chain of scopes is a circle.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, cast

from jsonpointer import JsonPointer, JsonPointerException

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.bindings import (
    INPUTS,
    ITEM,
    ITEM_INDEX,
    Binding,
    Path,
    Reference,
    find_binding_faults,
    find_bindings,
)
from planwarden.agent.core.inputs import find_inputs_faults
from planwarden.agent.core.pointers import MAX_ARGUMENT_BYTES

Scope = dict[str, JsonValue]
Scopes = Mapping[str, Scope]
"""By name what each used plan is given, as it was written, with the defaults of the plan's inputs."""

SUFFIX = f".{INPUTS}"
MAX_SCOPE_BINDINGS = 1_000
"""Of all scopes of a plan."""
MAX_SCOPES_BYTES = 2 * 1024 * 1024
MAX_LISTED = 20
_WRITTEN = ("$from", "$text")


class ScopePart(NamedTuple):
    """Where a pointer into a scope stops: at its end, or at a binding, template or value that has no written parts."""

    written: JsonValue
    pointer: str
    """What remains of the pointer."""
    path: Path
    """Where it stands in the scope."""


Needs = dict[Reference, bool]
"""What is taken from steps, and whether a default stands in for it on every way to it."""


def find_part(scope: Scope, pointer: str) -> ScopePart | None:
    """Returns the part to which the pointer leads; None if nothing is there."""
    try:
        tokens = JsonPointer(pointer)
    except JsonPointerException:
        return None
    node: JsonValue = scope
    parts = tokens.parts
    path: Path = ()
    for number, token in enumerate(parts):
        if not isinstance(node, dict | list) or any(key in node for key in _WRITTEN if isinstance(node, dict)):
            return ScopePart(node, JsonPointer.from_parts(parts[number:]).path, path)
        if isinstance(node, list) and token == "-":
            return None
        path = (*path, int(token) if isinstance(node, list) and token.isdecimal() else token)
        try:
            node = cast("JsonValue", tokens.walk(node, token))
        except JsonPointerException:
            return None
    return ScopePart(node, "", path)


def find_needs(bindings: Iterable[Binding], scopes: Scopes, known: dict[Reference, Needs] | None = None) -> Needs:
    """Returns what the bindings take, through scopes too; `known` keeps what was found, for the same scopes."""
    known = {} if known is None else known
    needs: Needs = {}
    for binding in bindings:
        reference = binding.reference
        if reference not in known:
            known[reference] = _find_reference_needs(reference, scopes, known)
        for leaf, has_default in known[reference].items():
            needs[leaf] = needs.get(leaf, True) and (has_default or binding.has_default)
    return needs


def _find_reference_needs(reference: Reference, scopes: Scopes, known: dict[Reference, Needs]) -> Needs:
    scope = scopes.get(reference.step_id)
    if scope is None:
        return {reference: False}
    part = find_part(scope, reference.pointer)
    return {} if part is None else find_needs(find_bindings(part.written), scopes, known)


def find_scope_faults(scopes: JsonValue, step_ids: Collection[str]) -> Iterator[str]:
    """Yields what is wrong with the `scopes` of a plan, one sentence each."""
    if not isinstance(scopes, dict):
        yield "'scopes' is not an object"
        return
    if measure_at_least(scopes, MAX_SCOPES_BYTES) > MAX_SCOPES_BYTES:
        yield f"the inputs of the plans within the plan are larger than {MAX_SCOPES_BYTES} bytes together"
        return
    count = 0
    for name, scope in scopes.items():
        if not name.endswith(SUFFIX) or not isinstance(scope, dict):
            yield f"scope {name[:80]!r} is not an object whose name ends in {SUFFIX!r}"
            continue
        yield from (f"scope {name[:80]!r}: {fault}" for fault in _find_faults(name, scope, scopes, step_ids))
        count += sum(1 for _ in find_bindings(scope))
    if count > MAX_SCOPE_BINDINGS:
        yield f"the inputs of the plans within the plan have more than {MAX_SCOPE_BINDINGS} bindings"


def find_schema_faults(schemas: JsonValue, scopes: Scopes) -> Iterator[str]:
    """Yields what is wrong with the `scopeSchemas` of a plan that has these scopes, one sentence each."""
    if not isinstance(schemas, dict):
        yield "'scopeSchemas' is not an object"
        return
    if measure_at_least(schemas, MAX_SCOPES_BYTES) > MAX_SCOPES_BYTES:
        yield f"the schemas of the plans within the plan are larger than {MAX_SCOPES_BYTES} bytes together"
        return
    checked: dict[int, list[str]] = {}
    for name, schema in schemas.items():
        if not isinstance(schema, dict):
            yield f"the schema of scope {name[:80]!r} is not an object"
        elif name in scopes:
            # A plan that is used many times is there as often, and one schema takes a while to compile.
            if id(schema) not in checked:
                checked[id(schema)] = list(find_inputs_faults(schema))
            yield from (f"the schema of scope {name[:80]!r}: {fault}" for fault in checked[id(schema)])


def _find_faults(name: str, scope: Scope, scopes: Mapping[str, JsonValue], step_ids: Collection[str]) -> Iterator[str]:
    if measure_at_least(scope, MAX_ARGUMENT_BYTES) > MAX_ARGUMENT_BYTES:
        yield f"it is larger than {MAX_ARGUMENT_BYTES} bytes"
    yield from find_binding_faults(scope)
    for binding in find_bindings(scope):
        taken = binding.reference.step_id
        if taken in scopes and not name.removesuffix(SUFFIX).startswith(taken.removesuffix(INPUTS)):
            yield f"it takes {taken[:80]!r}, which does not enclose it"
        elif taken in (ITEM, ITEM_INDEX) and taken not in step_ids:
            yield f"it takes {taken!r}, which only the calls of a loop have"


def keep_taken(bindings: Iterable[Binding], scopes: Scopes) -> dict[str, Scope]:
    """Returns the scopes from which the bindings take something, themselves or through others."""
    if not scopes:
        return {}
    kept: set[str] = set()
    waiting = {binding.reference.step_id for binding in bindings} & scopes.keys()
    while waiting:
        name = waiting.pop()
        kept.add(name)
        waiting |= {found.reference.step_id for found in find_bindings(scopes[name])} & scopes.keys() - kept
    return {name: scope for name, scope in scopes.items() if name in kept}
