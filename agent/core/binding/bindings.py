"""Bindings as plans write them: `{"$from": STEP, "pointer": POINTER, "parse": "json", "default": VALUE}` for a value.

A binding names a step of the same plan, `inputs`, or, within a `forEach`, the `item` or its `itemIndex`. Any other name
means a completed step of an earlier execution of the thread; the value is looked up once, when the plan is accepted,
and stored in the event that accepts it. `{"$from": "item", "call": 0}` takes the result of an earlier call for the same
item. `{"$text": TEMPLATE, "with": {NAME: BINDING}}` puts values into text, so that no model retypes them. In TEMPLATE,
`{name}` becomes the value of that name: text as it is, anything else as compact JSON. `{{` and `}}` are braces.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import Needed
from planwarden.agent.common.struct import JsonValue, StoredStruct

INPUTS, ITEM, ITEM_INDEX = "inputs", "item", "itemIndex"
"""What a binding can name in addition to steps: the plan's inputs, and the item of a loop and its index."""
WHEN = "when"
"""The cause of a skip if a condition of the step itself did not hold; any other cause is the id of another step."""
POINTER = re.compile(r"(/([^~/]|~[01])*)*\Z")
_PART = re.compile(r"[^.\[\]/'\"\s]+")
MAX_QUOTED = 200
_REFERENCE_KEYS = ("$from", "pointer", "parse", "call")
_KEYS = (*_REFERENCE_KEYS, "default")
_CONTAINERS = (dict, list)
"""The types that can contain bindings; most values in arguments have neither type."""
MAX_TEMPLATE_CHARS = 20_000
MAX_QUOTED_NAME = 40
_PATH = re.compile(r"[{$ ]*(?:steps\.)?([A-Za-z_][\w-]*)\.([\w.\[\]-]+)[} ]*")
"""A path such as `find.name`, by which other languages take a value."""
_TEMPLATE_KEYS = ("$text", "with")
_TEMPLATE_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_BRACES = {"{{": "{", "}}": "}"}

Path = tuple[str | int, ...]
"""Keys and indexes that lead from arguments to a value in them."""


class Reference(NamedTuple):
    """What a binding takes."""

    step_id: str
    pointer: str = ""
    """RFC 6901; the whole result if empty."""
    parse: str = ""
    """`json` if the result is text with JSON in it."""
    call: int | None = None
    """To take the result of another call for the same item: that call's number, from 0. None to take from `step_id`."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the binding as a plan writes it."""
        fields = zip(_REFERENCE_KEYS, self, strict=True)
        return {key: value for key, value in fields if value not in ("", None)}


class EarlierResult(StoredStruct):
    """The value of a binding to a step of an earlier execution of the thread."""

    step_id: str
    execution_id: str
    value: JsonValue = None
    pointer: str = ""
    parse: str = ""

    @property
    def reference(self) -> Reference:
        return Reference(self.step_id, self.pointer, self.parse)


Earlier = Mapping[Reference, EarlierResult | str]
"""What the thread's earlier executions have for each binding, or a sentence that says why they have nothing."""


class EarlierNeeded(Needed):
    """The plan can be checked again when these bindings have been looked up in the thread."""

    keys: frozenset[Reference]


class Binding(NamedTuple):
    """One occurrence of a binding."""

    reference: Reference
    source: dict[str, JsonValue]

    @property
    def has_default(self) -> bool:
        return "default" in self.source


def find_bindings(value: JsonValue) -> Iterator[Binding]:
    """Yield each binding in the value, and a template's binding as often as the template's text uses it."""
    for node in _find_nodes(value):
        if "$from" in node:
            yield Binding(read_reference(node), node)
        else:
            values = read_with(node)
            for name in list_template_names(node):
                yield from find_bindings(values.get(name))


def _find_nodes(value: JsonValue) -> Iterator[dict[str, JsonValue]]:
    """Yield each binding and each template in the value, but nothing inside a template."""
    if isinstance(value, dict) and ("$from" in value or "$text" in value):
        yield value
        return
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        if isinstance(child, _CONTAINERS):
            yield from _find_nodes(child)


def has_bindings(value: JsonValue) -> bool:
    """Return whether the value takes anything from elsewhere."""
    return next(find_bindings(value), None) is not None


def find_references(value: JsonValue) -> Iterator[Reference]:
    """Yield what each binding in the value takes."""
    return (binding.reference for binding in find_bindings(value))


def read_reference(value: dict[str, JsonValue]) -> Reference:
    """Return what a `$from` object says."""
    call = value.get("call")
    pointer, parse = str(value.get("pointer", "")), str(value.get("parse", ""))
    return Reference(str(value["$from"]), pointer, parse, call if type(call) is int else None)


def find_binding_faults(value: JsonValue) -> Iterator[str]:
    """Yield faults of bindings and templates in the value: unknown keys, wrong types, pointers that break RFC 6901."""
    for node in _find_nodes(value):
        if "$from" in node:
            yield from _find_reference_faults(node)
        else:
            yield from find_template_faults(node)
            for child in read_with(node).values():
                if isinstance(child, dict) and "$from" in child:
                    yield from _find_reference_faults(child)


def _find_reference_faults(value: dict[str, JsonValue]) -> Iterator[str]:
    pointer = value.get("pointer", "")
    if unknown := sorted(value.keys() - {*_KEYS}):
        stray = ", ".join(repr(key[:MAX_QUOTED]) for key in unknown[:10])
        path = next((value[key] for key in ("path", "jsonPointer", "field", "key") if key in value), None)
        hint = f"; write 'pointer': '{to_pointer(path)}'" if isinstance(path, str) and "pointer" not in value else ""
        takes = "'$from', 'pointer', 'parse', 'call' and 'default'"
        yield f"a '$from' object has no key {stray}; it takes {takes}{hint}"
    if not isinstance(value["$from"], str):
        yield "'$from' must be the id of one step, in text"
    if value.get("parse", "json") != "json":
        text = str(value["parse"])[:MAX_QUOTED]
        yield f"'parse' is {text!r}, but the only value that it takes is \"json\""
    if type(value.get("call", 0)) is not int:
        yield "'call' must be the number of an earlier call of the same item, counted from 0"
    if not isinstance(pointer, str) or not POINTER.match(pointer):
        text = str(pointer)[:MAX_QUOTED]
        yield f"pointer {text!r} is not a JSON pointer (RFC 6901); write {to_pointer(text)!r}"


def to_pointer(path: str) -> str:
    """Return the JSON pointer that a path in another language, such as `$.results[0].url`, probably means."""
    return "".join(f"/{re.sub('~(?![01])', '~0', part)}" for part in _PART.findall(path.removeprefix("$")))


def replace_bindings_by_null(value: JsonValue, bound: list[Path], path: Path = ()) -> JsonValue:
    """Return the value with null in place of each binding and template, and add their paths to `bound`."""
    if isinstance(value, dict):
        if "$from" in value or "$text" in value:
            bound.append(path)
            return None
        return {key: replace_bindings_by_null(child, bound, (*path, key)) for key, child in value.items()}
    if isinstance(value, list):
        return [replace_bindings_by_null(child, bound, (*path, index)) for index, child in enumerate(value)]
    return value


def read_with(node: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the values of a template's names; none if `with` is not an object."""
    values = node.get("with")
    return values if isinstance(values, dict) else {}


def list_template_names(node: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the name of each place in the template's text that takes a value."""
    return (match.group(1) for match in _list_template_parts(node) if match.group(1) is not None)


def _list_template_parts(node: Mapping[str, JsonValue]) -> Iterator[re.Match[str]]:
    text = node["$text"]
    return _TEMPLATE_PART.finditer(text if isinstance(text, str) else "")


def read_own_words(node: Mapping[str, JsonValue]) -> str:
    """Return the template's text without the places that take values."""
    text = node["$text"]
    return _TEMPLATE_PART.sub(lambda part: _BRACES.get(part.group(), ""), text if isinstance(text, str) else "")


def find_template_faults(node: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield what is wrong with a template, one sentence each, apart from faults of the bindings in it."""
    text, values = node["$text"], node.get("with", {})
    if unknown := sorted(node.keys() - {*_TEMPLATE_KEYS}):
        stray = ", ".join(repr(key[:MAX_QUOTED_NAME]) for key in unknown[:10])
        yield f"a '$text' object has no key {stray}; it takes '$text' and 'with'"
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
    if any(match.group() in "{}" for match in _list_template_parts(node)):
        yield "'$text' has a brace without its partner; write '{{' or '}}' for a brace"
    names = set(list_template_names(node))
    if not names:
        hint = f"write '{{{next(iter(values))[:MAX_QUOTED_NAME]}}}' in one pair of braces" if values else None
        yield f"'$text' takes no value; {hint or 'write the text itself instead of the object'}"
    for name in sorted(names - values.keys())[:10]:
        right = json.dumps({name[:MAX_QUOTED_NAME]: _read_path(name)})
        fault = f"'$text' takes {name[:MAX_QUOTED_NAME]!r}, which 'with' does not have"
        yield f"{fault}; write \"with\": {right}, or '{{{{' for a brace"
    for name in sorted(values.keys() - names)[:10]:
        yield f"'with' has {name[:MAX_QUOTED_NAME]!r}, which '$text' does not take"
    for name, value in values.items():
        if not isinstance(value, dict) or "$from" not in value:
            example = json.dumps(_read_path(value if isinstance(value, str) and _PATH.fullmatch(value) else name))
            yield f"{name[:MAX_QUOTED_NAME]!r} in 'with' must be a binding, such as {example}"
            return


def _read_path(path: str) -> dict[str, JsonValue]:
    """Return the binding that a path such as `find.name` may mean, with an example of a step if it names none."""
    match = _PATH.fullmatch(path)
    step_id, rest = match.groups() if match is not None else ("find", path)
    return Reference(step_id[:MAX_QUOTED], to_pointer(rest[:MAX_QUOTED])).to_json()


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

    return _TEMPLATE_PART.sub(replace, cast("str", node["$text"]))
