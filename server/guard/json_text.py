"""Adds values to hand-written JSON files and removes values. The files may have comments and trailing commas.

All other characters stay as they are. Every changed text is parsed again before it is returned.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
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
    """A value, and where the text of the value begins and ends."""

    kind: Literal["object", "array", "plain"]
    start: int
    end: int
    value: JsonValue
    children: tuple[tuple[str, int, "JsonNode"], ...] = ()
    """For each member: its key (empty in an array), where the member begins, and its value."""

    def find(self, key: str) -> "JsonNode | None":
        return next((node for name, _, node in self.children if name == key), None)


def read_text(path: Path) -> str:
    """Return the file's text with its line ends unchanged; empty if there is no file."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""


def read_json_text(text: str) -> JsonNode:
    """Return the parsed text. A text of only blanks and comments counts as an empty object.

    Raises:
        InvalidArguments: the text is not JSON with comments, has a key twice in an object, or is too large or deep.
    """
    if len(text) > MAX_CHARS:
        raise InvalidArguments("it is larger than 4 MiB")
    if _skip(text, 0) == len(text):
        return JsonNode(kind="object", start=0, end=0, value={})
    node = _read(text, _skip(text, 0), 0)
    if _skip(text, node.end) != len(text):
        raise InvalidArguments(f"it has more text after its JSON value, {_describe_place(text, node.end)}")
    return node


def find_value(text: str, keys: Sequence[str]) -> JsonValue:
    """Return the value at the end of this path of keys; None if there is none. Errors as in `read_json_text`."""
    value = read_json_text(text).value
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def add_item(text: str, path: tuple[str, ...], item: JsonValue) -> str:
    """Return the text with the item added to the array at that path of keys. Create missing objects and the array.

    Raises:
        InvalidArguments: another kind of value is in the way, or the text cannot be read.
    """
    node, remaining = _descend(text, path)
    if node.kind == "plain" or (not remaining and node.kind != "array") or (remaining and node.kind != "object"):
        raise InvalidArguments(f"{'.'.join(path)!r} is not what a host expects there")
    changed = _insert(text, node, remaining, [item] if remaining else item)
    if read_json_text(changed).value != _add_to_value(read_json_text(text).value, path, item):
        raise InvalidArguments("it is written in a way that planwarden cannot add to")
    return changed


def set_member(text: str, path: tuple[str, ...], value: JsonValue) -> str:
    """Return the text with the value added at the path; unchanged if a value is there or in the way."""
    node, remaining = _descend(text, path)
    if not remaining or node.kind != "object":
        return text
    changed = _insert(text, node, remaining, value)
    read_json_text(changed)
    return changed


def remove_at(text: str, path: tuple[str | int, ...]) -> str:
    """Return the text without the value at that path. Also remove each container that becomes empty, except the root,
    and except containers that were empty before `add_item` (see `_was_empty`).

    Raises:
        InvalidArguments: there is no such value, or the text cannot be read.
    """
    root = read_json_text(text)
    chain = [root]
    for key in path:
        node = chain[-1].find(key) if isinstance(key, str) else dict(enumerate(c for *_, c in chain[-1].children))[key]
        if node is None:
            raise InvalidArguments("there is nothing to remove")
        chain.append(node)
    depth = len(path)
    while depth > 1 and len(chain[depth - 1].children) == 1 and not _was_empty(chain[depth - 1]):
        depth -= 1
    parent, target = chain[depth - 1], chain[depth]
    index = next(number for number, (_, _, node) in enumerate(parent.children) if node is target)
    start = parent.children[index][1]
    if index > 0:
        begin, end = parent.children[index - 1][2].end, target.end
    elif len(parent.children) > 1:
        begin, end = start, parent.children[1][1]
    else:
        begin, end = parent.start + 1, parent.end - 1
        if _was_empty(parent) or re.search(r"//|/\*", text[begin:start] + text[target.end : end]):
            begin, end = start, target.end
            comma = _skip(text, end)
            text = text[:comma] + text[comma:].removeprefix(",")
    changed = text[:begin] + text[end:]
    read_json_text(changed)
    return changed


def _was_empty(container: JsonNode) -> bool:
    """Return whether the container was empty before `_insert`, which then puts no blank before the new member."""
    return container.children[0][1] == container.start + 1


def _descend(text: str, path: tuple[str, ...]) -> tuple[JsonNode, tuple[str, ...]]:
    """Return the deepest existing value on the path, and the keys that are missing below it."""
    node = read_json_text(text)
    while path and node.kind == "object" and (child := node.find(path[0])) is not None:
        node, path = child, path[1:]
    return node, path


def _insert(text: str, node: JsonNode, keys: tuple[str, ...], value: JsonValue) -> str:
    for key in reversed(keys[1:]):
        value = {key: value}
    if node.start == node.end:
        return json.dumps({keys[0]: value}, indent=2, ensure_ascii=False) + "\n"
    unit, own = _find_indent(text, node)
    entry = json.dumps(value, indent=unit, ensure_ascii=False)
    if keys:
        entry = f"{json.dumps(keys[0], ensure_ascii=False)}: {entry}"
    end = "\r\n" if "\r\n" in text else "\n"
    inner = own + unit
    if not node.children and node.start != _skip(text, 0):
        entry = entry.replace("\n", end + own)
        return f"{text[: node.start + 1]}{entry}{text[node.start + 1 :]}"
    entry = entry.replace("\n", end + inner)
    if node.children:
        last = node.children[-1][2].end
        return f"{text[:last]},{end}{inner}{entry}{text[last:]}"
    body = text[node.start + 1 : node.end - 1].rstrip()
    return f"{text[: node.start + 1]}{body}{end}{inner}{entry}{end}{own}{text[node.end - 1 :]}"


def _find_indent(text: str, node: JsonNode) -> tuple[str, str]:
    """Return the text of one level of indentation, and the indentation of the line on which the container begins."""
    match = re.search(r"\n([ \t]+)\S", text)
    unit = match[1] if match is not None else "  "
    line = text[text.rfind("\n", 0, node.start) + 1 : node.start]
    return unit, line[: len(line) - len(line.lstrip())]


def _add_to_value(value: JsonValue, path: tuple[str, ...], item: JsonValue) -> JsonValue:
    if not path:
        return [*cast("list[JsonValue]", value or []), item]
    members = dict(cast("dict[str, JsonValue]", value or {}))
    members[path[0]] = _add_to_value(members.get(path[0]), path[1:], item)
    return members


def _read(text: str, start: int, depth: int) -> JsonNode:
    if depth > MAX_DEPTH:
        raise InvalidArguments("it is nested too deeply")
    closing = {"{": "}", "[": "]"}.get(text[start : start + 1])
    if closing is None:
        return _read_plain(text, start)
    children: list[tuple[str, int, JsonNode]] = []
    position = _skip(text, start + 1)
    while text[position : position + 1] != closing:
        begin, key = position, ""
        if closing == "}":
            name = _read_plain(text, _expect(text, position, '"'))
            key = str(name.value)
            if any(key == earlier for earlier, *_ in children):
                raise InvalidArguments(f"it has the key {key[:80]!r} twice")
            position = _skip(text, _expect(text, _skip(text, name.end), ":") + 1)
        node = _read(text, position, depth + 1)
        children.append((key, begin, node))
        position = _skip(text, node.end)
        if text[position : position + 1] != closing:
            position = _skip(text, _expect(text, position, ",") + 1)
    value: JsonValue = (
        {key: node.value for key, _, node in children} if closing == "}" else [node.value for *_, node in children]
    )
    kind = "object" if closing == "}" else "array"
    return JsonNode(kind=kind, start=start, end=position + 1, value=value, children=tuple(children))


def _read_plain(text: str, start: int) -> JsonNode:
    match = _STRING.match(text, start) or _PLAIN.match(text, start)
    try:
        if match is not None:
            return JsonNode(kind="plain", start=start, end=match.end(), value=json.loads(match[0]))
    except ValueError:
        pass
    raise InvalidArguments(f"it is not JSON, {_describe_place(text, start)}")


def _expect(text: str, position: int, character: str) -> int:
    """Return the position if the character is there. Raises `InvalidArguments` if it is not."""
    if text[position : position + 1] != character:
        raise InvalidArguments(f"it is not JSON, {_describe_place(text, position)}")
    return position


def _skip(text: str, position: int) -> int:
    """Return where the next token begins, after blanks and comments."""
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def _describe_place(text: str, position: int) -> str:
    return f"line {text.count(chr(10), 0, position) + 1}"
