"""Changes of JSON files as people write them, with comments and trailing commas: what is added and removed is text.

All other characters stay as they are. The result is read again before it counts.
"""

import json
import re
from typing import Literal, cast

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments

MAX_CHARS = 4 * 1024 * 1024
MAX_DEPTH = 100
_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"', re.DOTALL)
_PLAIN = re.compile(r"-?[0-9][-+.0-9eE]*|true|false|null")


class JsonNode(msgspec.Struct, frozen=True, kw_only=True):
    """A value and where it is in the text."""

    kind: Literal["object", "array", "plain"]
    start: int
    end: int
    value: JsonValue
    children: tuple[tuple[str, int, "JsonNode"], ...] = ()
    """Key (empty in an array), where the member begins, and the value."""

    def find(self, key: str) -> "JsonNode | None":
        return next((node for name, _, node in self.children if name == key), None)


def read_json_text(text: str) -> JsonNode:
    """Return the value of the text; an empty text is an empty object.

    Raises:
        InvalidArguments: it is not JSON with comments, or a key occurs twice in one object.
    """
    if len(text) > MAX_CHARS:
        raise InvalidArguments("it is larger than 4 MiB")
    if not text.strip():
        return JsonNode(kind="object", start=0, end=0, value={})
    node, place = _read(text, _skip(text, 0), 0)
    if _skip(text, place) != len(text):
        raise InvalidArguments(f"it goes on after its value, {_describe_place(text, place)}")
    return node


def add_item(text: str, path: tuple[str, ...], item: JsonValue) -> str:
    """Return the text with the item at the end of the array at that path of keys; makes what is missing on the way.

    Raises:
        InvalidArguments: there is something else, or the text cannot be read.
    """
    node, remaining = _descend(text, path)
    if node.kind == "plain" or (not remaining and node.kind != "array") or (remaining and node.kind != "object"):
        raise InvalidArguments(f"{'.'.join(path)!r} is not what a host expects there")
    changed = _insert(text, node, remaining, [item] if remaining else item)
    expected = _add_to_value(read_json_text(text).value, path, item)
    return _check(changed, expected)


def set_member(text: str, path: tuple[str, ...], value: JsonValue) -> str:
    """Return the text with a new member; one that is there already is left as it is. Raises as `add_item`."""
    node, remaining = _descend(text, path)
    if not remaining or node.kind != "object":
        return text
    changed = _insert(text, node, remaining, value)
    read_json_text(changed)
    return changed


def remove_at(text: str, path: tuple[str | int, ...]) -> str:
    """Return the text without the value there, and without the containers that are empty then.

    Raises:
        InvalidArguments: there is none, or the text cannot be read.
    """
    root = read_json_text(text)
    chain = [root]
    for key in path:
        node = chain[-1].find(key) if isinstance(key, str) else dict(enumerate(c for *_, c in chain[-1].children))[key]
        if node is None:
            raise InvalidArguments("there is nothing to remove")
        chain.append(node)
    depth = len(path)
    while depth > 1 and len(chain[depth - 1].children) == 1:
        depth -= 1
    parent, target = chain[depth - 1], chain[depth]
    place = next(number for number, (_, _, node) in enumerate(parent.children) if node is target)
    start = parent.children[place][1]
    if place > 0:
        begin, end = parent.children[place - 1][2].end, target.end
    elif len(parent.children) > 1:
        begin, end = start, parent.children[1][1]
    else:
        begin, end = parent.start + 1, parent.end - 1
        if re.search(r"//|/\*", text[begin:start] + text[target.end : end]):
            begin, end = start, target.end
    changed = text[:begin] + text[end:]
    read_json_text(changed)
    return changed


def _descend(text: str, path: tuple[str, ...]) -> tuple[JsonNode, tuple[str, ...]]:
    """Return the deepest value on the path that is there, and the keys that are not."""
    node = read_json_text(text)
    while path and node.kind == "object" and (child := node.find(path[0])) is not None:
        node, path = child, path[1:]
    return node, path


def _insert(text: str, node: JsonNode, keys: tuple[str, ...], value: JsonValue) -> str:
    for key in reversed(keys[1:]):
        value = {key: value}
    if node.start == node.end:
        # An empty file.
        return json.dumps({keys[0]: value}, indent=2, ensure_ascii=False) + "\n"
    unit, own = _find_indent(text, node)
    entry = json.dumps(value, indent=unit, ensure_ascii=False)
    if keys:
        entry = f"{json.dumps(keys[0], ensure_ascii=False)}: {entry}"
    end = "\r\n" if "\r\n" in text else "\n"
    inner = own + unit
    entry = entry.replace("\n", end + inner)
    if node.children:
        last = node.children[-1][2].end
        return f"{text[:last]},{end}{inner}{entry}{text[last:]}"
    body = text[node.start + 1 : node.end - 1].rstrip()
    return f"{text[: node.start + 1]}{body}{end}{inner}{entry}{end}{own}{text[node.end - 1 :]}"


def _find_indent(text: str, node: JsonNode) -> tuple[str, str]:
    """Return one level of indentation, and that of the line on which the container begins."""
    match = re.search(r"\n([ \t]+)\S", text)
    unit = match[1] if match is not None else "  "
    line = text[text.rfind("\n", 0, node.start) + 1 : node.start]
    return unit, line[: len(line) - len(line.lstrip())]


def _check(text: str, expected: JsonValue) -> str:
    if read_json_text(text).value != expected:
        raise InvalidArguments("it is written in a way that nothing can be added to")
    return text


def _add_to_value(value: JsonValue, path: tuple[str, ...], item: JsonValue) -> JsonValue:
    if not path:
        return [*cast("list[JsonValue]", value or []), item]
    members = dict(cast("dict[str, JsonValue]", value or {}))
    members[path[0]] = _add_to_value(members.get(path[0]), path[1:], item)
    return members


def _read(text: str, place: int, depth: int) -> tuple[JsonNode, int]:
    if depth > MAX_DEPTH:
        raise InvalidArguments("it is nested too deeply")
    character = text[place : place + 1]
    if character == "{":
        return _read_container(text, place, depth, is_object=True)
    if character == "[":
        return _read_container(text, place, depth, is_object=False)
    match = _STRING.match(text, place) or _PLAIN.match(text, place)
    try:
        value: JsonValue = json.loads(match[0]) if match is not None else None
    except ValueError:
        match = None
        value = None
    if match is None:
        raise InvalidArguments(f"it is not JSON, {_describe_place(text, place)}")
    return JsonNode(kind="plain", start=place, end=match.end(), value=value), match.end()


def _read_container(text: str, start: int, depth: int, *, is_object: bool) -> tuple[JsonNode, int]:
    children: list[tuple[str, int, JsonNode]] = []
    closing = "}" if is_object else "]"
    place = _skip(text, start + 1)
    while text[place : place + 1] != closing:
        begin, key = place, ""
        if is_object:
            if text[place : place + 1] != '"':
                raise InvalidArguments(f"it is not JSON, {_describe_place(text, place)}")
            name_node, place = _read(text, place, depth)
            key = str(name_node.value)
            if any(name == key for name, *_ in children):
                raise InvalidArguments(f"it has the key {key[:80]!r} twice")
            place = _skip(text, place)
            if text[place : place + 1] != ":":
                raise InvalidArguments(f"it is not JSON, {_describe_place(text, place)}")
            place = _skip(text, place + 1)
        node, place = _read(text, place, depth + 1)
        children.append((key, begin, node))
        place = _skip(text, place)
        if text[place : place + 1] == ",":
            place = _skip(text, place + 1)
        elif text[place : place + 1] != closing:
            raise InvalidArguments(f"it is not JSON, {_describe_place(text, place)}")
    value: JsonValue = (
        {key: node.value for key, _, node in children} if is_object else [node.value for *_, node in children]
    )
    kind = "object" if is_object else "array"
    return JsonNode(kind=kind, start=start, end=place + 1, value=value, children=tuple(children)), place + 1


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()


def _describe_place(text: str, place: int) -> str:
    return f"line {text.count(chr(10), 0, place) + 1}"
