"""Templates: `{"$text": "Dear {name}", "with": {"name": BINDING}}` is text with values in it, which no model retypes.

`{name}` is replaced by the value of that name: text as it is, anything else as compact JSON. `{{` and `}}` are braces.
"""

import re
from collections.abc import Iterator, Mapping
from typing import cast

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.struct import JsonValue

MAX_TEMPLATE_CHARS = 20_000
MAX_QUOTED = 40
_KEYS = ("$text", "with")
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_BRACES = {"{{": "{", "}}": "}"}


def read_with(node: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the values of a template's names; nothing where `with` is not an object."""
    values = node.get("with")
    return values if isinstance(values, dict) else {}


def list_names(node: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the names in the template's text, as often as they stand there."""
    return (match.group(1) for match in _list_parts(node) if match.group(1) is not None)


def _list_parts(node: Mapping[str, JsonValue]) -> Iterator[re.Match[str]]:
    text = node["$text"]
    return _PART.finditer(text if isinstance(text, str) else "")


def find_template_faults(node: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield what is wrong with a template, one sentence each; faults of the bindings in it are not among them."""
    text, values = node["$text"], node.get("with", {})
    if unknown := sorted(node.keys() - {*_KEYS}):
        stray = ", ".join(repr(key[:MAX_QUOTED]) for key in unknown[:10])
        yield f"a '$text' object has unknown key(s) {stray}; it takes '$text' and 'with'"
    if not isinstance(text, str):
        yield "'$text' must be text, with names in braces"
        return
    if len(text) > MAX_TEMPLATE_CHARS:
        yield f"'$text' has {len(text)} characters, the limit is {MAX_TEMPLATE_CHARS}"
        return
    if not isinstance(values, dict):
        yield "'with' of a '$text' object must be an object of names and bindings"
        return
    yield from _find_name_faults(node, values)


def _find_name_faults(node: Mapping[str, JsonValue], values: Mapping[str, JsonValue]) -> Iterator[str]:
    if any(match.group() in "{}" for match in _list_parts(node)):
        yield "'$text' has a brace without its partner; write '{{' or '}}' for a brace"
    names = set(list_names(node))
    if not names:
        hint = f"write '{{{next(iter(values))[:MAX_QUOTED]}}}' in one pair of braces" if values else None
        yield f"'$text' takes no value; {hint or 'write the text itself instead of the object'}"
    for name in sorted(names - values.keys())[:10]:
        yield f"'$text' takes {name[:MAX_QUOTED]!r}, which 'with' does not have; write '{{{{' for a brace"
    for name in sorted(values.keys() - names)[:10]:
        yield f"'with' has {name[:MAX_QUOTED]!r}, which '$text' does not take"
    for name, value in values.items():
        if not isinstance(value, dict) or "$from" not in value:
            example = '{"$from": "find", "pointer": "/name"}'
            yield f"{name[:MAX_QUOTED]!r} in 'with' must be a binding, such as {example}"
            return


def fill_template(node: Mapping[str, JsonValue], values: Mapping[str, JsonValue]) -> str:
    """Return the text of a template that has no faults, with the `values` of its names."""

    def replace(match: re.Match[str]) -> str:
        name = cast("str | None", match.group(1))
        if name is None:
            return _BRACES[match.group()]
        value = values[name]
        if isinstance(value, float) and value.is_integer():
            # A person reads the text: 1200, not 1200.0.
            value = int(value)
        return value if isinstance(value, str) else canonical_json(value)

    return _PART.sub(replace, cast("str", node["$text"]))
