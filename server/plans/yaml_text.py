"""Reads and writes only the part of YAML that JSON could express.

Plain words mean what the core schema of YAML 1.2 says (https://yaml.org/spec/1.2.2/#103-core-schema): `yes`, `on` and
dates are text. Anchors and aliases, with which a few lines can mean gigabytes, are refused; so are tags, merge keys,
duplicate keys, several documents, NaN and infinity. The values are built from the parser's events: so the depth is
counted, and deep text is refused before it exceeds Python's recursion limit.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import yaml
from pydantic import JsonValue

from planwarden.agent.common.canonical import MAX_DEPTH
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded

MAX_VALUES = 100_000
"""The most scalars, lists and objects in one text."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE, _FALSE = frozenset({"true", "True", "TRUE"}), frozenset({"false", "False", "FALSE"})
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_PREFIXED = re.compile(r"(0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_JSON = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")

_HINTS = {
    "mapping values are not allowed": "; put a text that has ': ' in it into quotes",
    "cannot start any token": "; indent with spaces, not tabs, and put a text that begins with @ or ` into quotes",
    "did not find expected": "; compare how far this line and those before it are indented, and close each bracket",
}
"""By a part of the library's message, the advice for the person who wrote the text."""
_UNTYPED: Any = yaml
"""The library without its types, which are partly unknown."""


def read_yaml(text: str) -> JsonValue:
    """Return the value of the one document in the text.

    Raises:
        InvalidArguments: the text is not YAML, or JSON cannot hold it; the message names the line if it is known.
        LimitExceeded: the text is nested deeper than `MAX_DEPTH`, or has more than `MAX_VALUES` values.
    """
    try:
        return _Reader(_UNTYPED.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))).read_document()
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        problem = error.problem or "cannot be read"
        hint = next((hint for part, hint in _HINTS.items() if part in problem), "")
        raise InvalidArguments(f"not valid YAML: {where}{problem}{hint}") from None
    except yaml.YAMLError:
        raise InvalidArguments("not valid YAML: it has a character that YAML does not allow") from None


def write_yaml(value: JsonValue) -> str:
    """Return YAML for people: keys in their order, no flow style. `read_yaml` reads it as an equal value."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False)
    return str(text)


class _Reader:
    """Builds the values from the events of the parser, which come in the order of the text."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._values = 0

    def read_document(self) -> JsonValue:
        documents: list[JsonValue] = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if documents:
                    raise _refuse(event, "a second document begins; write one")
                documents.append(self._read(next(self._events), 0))
        if not documents:
            raise InvalidArguments("it is empty")
        return documents[0]

    def _read(self, event: yaml.Event, depth: int) -> JsonValue:
        """Return the value that begins with the event, inside `depth` lists and objects."""
        _check(event)
        if isinstance(event, yaml.ScalarEvent):
            value = event.value if event.style else _resolve(event, event.value)
            self._count()
            return value
        if depth >= MAX_DEPTH:
            raise LimitExceeded(f"the YAML is nested deeper than {MAX_DEPTH} levels")
        self._count()
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._read(item, depth + 1) for item in iter(self._next, None)]
        node: dict[str, JsonValue] = {}
        for key_event in iter(self._next, None):
            key = _read_key(key_event, node)
            node[key] = self._read(next(self._events), depth + 1)
        return node

    def _next(self) -> yaml.Event | None:
        """Return the next event of a list or an object; None at its end."""
        event = next(self._events)
        return None if isinstance(event, yaml.CollectionEndEvent) else event

    def _count(self) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise LimitExceeded(f"the YAML has more than {MAX_VALUES} values")


def _read_key(event: yaml.Event, node: Mapping[str, JsonValue]) -> str:
    _check(event)
    if not isinstance(event, yaml.ScalarEvent):
        raise _refuse(event, "a key is a list or an object; keys are text")
    if event.value == "<<" and not event.style:
        raise _refuse(event, "merge keys (<<) are not allowed; write the keys out")
    if event.value in node:
        raise _refuse(event, f"the key {event.value[:100]!r} occurs twice in one object")
    # Keys of JSON are text, even those that look like numbers.
    return event.value


def _check(event: yaml.Event) -> None:
    if isinstance(event, yaml.AliasEvent):
        raise _refuse(event, "aliases (*name) are not allowed; write the value where it is needed")
    if getattr(event, "anchor", None) is not None:
        raise _refuse(event, "anchors (&name) are not allowed; write the value where it is needed")
    if getattr(event, "tag", None) is not None:
        raise _refuse(event, "tags (!name) are not allowed")


def _resolve(event: yaml.Event, text: str) -> JsonValue:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _NOT_JSON.match(text):
        raise _refuse(event, "NaN and infinity are not JSON")
    try:
        if _INTEGER.match(text):
            return int(text)
        if _PREFIXED.match(text):
            return int(text, 0)
    except ValueError:
        raise _refuse(event, "a number has thousands of digits") from None
    if _FLOAT.match(text):
        number = float(text)
        if math.isinf(number):
            raise _refuse(event, "a number is too large")
        return number
    return text


def _refuse(event: yaml.Event, why: str) -> InvalidArguments:
    mark = cast("yaml.Mark | None", event.start_mark)
    where = "" if mark is None else f"line {mark.line + 1}: "
    return InvalidArguments(f"YAML that cannot be used: {where}{why}")


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes wherever `read_yaml` or PyYAML would otherwise not read it as text."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # The library would write unusual line separators as they are, and read them back as spaces.
    is_plain = text.replace("\n", "").isprintable() and not _means_something(text)
    style = '"' if not is_plain else "|" if "\n" in text else None
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style=style)


def _means_something(text: str) -> bool:
    if text in _NULL or text in _TRUE or text in _FALSE:
        return True
    return any(pattern.match(text) for pattern in (_INTEGER, _PREFIXED, _FLOAT, _NOT_JSON))


_Dumper.add_representer(str, _represent_text)
