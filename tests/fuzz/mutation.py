"""Seeded inputs: real documents changed in a few places, odd values, and text damaged byte by byte."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

Value = Any
"""What JSON can hold, and lone surrogates and NaN, which it cannot."""

ODD_TEXTS: tuple[str, ...] = (
    *("", " ", "\0", "\ud800", "a\udfffb", "\u202etxt.exe\u2066", "\u05d0\u05d1 (approve)", "\x1b[2J\x07"),
    *("\r\nSet-Cookie: a=b", "../../../../etc/passwd", "%00%2e%2e%2f", "' OR 1=1; --"),
    *("{{7*7}}<script>alert(1)</script>", "$from", "__proto__", "null", "NaN", "1e999", "\U0001f600" * 50),
    *("e\u0301" * 100, "~1~0/", "/content/0/~", "a" * 129, "x" * 20_001, "(a+)+$", "9**9**9", "https://127.0.0.1:1/"),
    *("planwarden://threads/../x",),
)
ODD_NUMBERS: tuple[float, ...] = (
    *(0, -1, 1, -0.0, 0.1, 5e-324, 1e308, 2**31, 2**53 + 1, 2**63, -(2**64), 10**30, 10**400, float("inf")),
    *(float("nan"),),
)
ODD_SCHEMAS: tuple[dict[str, Value], ...] = (
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?:x.{0,90}y){1,3}$"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}},
    {"type": "object", "patternProperties": {"(": {}}},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
    {"type": "object", "allOf": [{"minProperties": number} for number in range(200)]},
    {"type": "object", "properties": {"a": {"enum": [{"b": number} for number in range(500)]}}},
    {"type": "object", "properties": {f"p{number}": {"type": "boolean"} for number in range(200)}},
    {"type": ["object", "nothing"]},
    {"type": "object", "$schema": "urn:none", "$id": "::", "$anchor": 7},
    {"type": "object", "properties": {"a": {"type": "string", "format": "regex", "maxLength": -1}}},
    {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0}}},
)
JSON_TOKENS: tuple[bytes, ...] = (
    *(b"\0", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b'"', b"\\ud800", b"\\u0000", b"{", b"[" * 70, b"[" * 5_000, b"]"),
    *(b",", b":", b"NaN", b"-Infinity", b"1e999", b"9" * 5_000, b"null", b"true", b"\r\n", b"\n", b'"id":1,"id":2,'),
)


class Mutator:
    """Makes one input. Everything random about it comes from the seed."""

    def __init__(self, seed: str, on_made: Callable[[], None] = lambda: None) -> None:
        """`on_made` is called when the input is made, and before it is sent."""
        self.random = random.Random(seed)
        self._on_made = on_made
        self._sent: object = None

    @property
    def sent(self) -> object:
        """The input, for the report; the entrance sets it before it sends."""
        return self._sent

    @sent.setter
    def sent(self, sent: object) -> None:
        self._sent = sent
        self._on_made()

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, values: Sequence[Value]) -> Value:
        return values[self.random.randrange(len(values))]

    def odd_text(self) -> str:
        found: str = self.pick(ODD_TEXTS)
        return found if self.chance(0.8) else found + self.pick(ODD_TEXTS)

    def odd_value(self) -> Value:
        """A value of any type and size, as a rule small."""
        kinds: tuple[Callable[[], Value], ...] = (
            self.odd_text,
            self.odd_text,
            lambda: self.pick(ODD_NUMBERS),
            lambda: self.pick((None, True, False, {}, [], [[]], {"": ""}, [None])),
            # A copy, or a later change would change the schema itself.
            lambda: json.loads(json.dumps(self.pick(ODD_SCHEMAS))),
            lambda: nest(self.odd_text(), self.pick((3, 30, 63, 65, 200))),
            lambda: [self.pick(ODD_NUMBERS)] * self.pick((2, 51, 1_000)),
            lambda: {f"k{number}": self.odd_text() for number in range(self.pick((1, 5, 101)))},
            lambda: {"$from": self.odd_text(), "pointer": self.odd_text()},
        )
        return self.pick(kinds)()

    def mutate(self, document: Value, others: Sequence[Value] = (), changes: int | None = None) -> Value:
        """A copy of the document with a few changes; `others` lend parts."""
        found = json.loads(json.dumps(document))
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 4)) if changes is None else changes):
            found = self._change(found, others)
        return found

    def encode(self, document: Value) -> bytes:
        """The document as JSON; now and then what JSON does not have, or damaged."""
        text = json.dumps(document, ensure_ascii=self.chance(0.8)).encode("utf-8", "surrogatepass")
        return self.damage(text) if self.chance(0.15) else text

    def damage(self, data: bytes, tokens: Sequence[bytes] = JSON_TOKENS) -> bytes:
        """The bytes with some flipped, cut, repeated or put in between."""
        found = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 5))):
            place = self.random.randrange(len(found) + 1)
            length = min(self.random.choice((1, 2, 8, 60)), len(found) - place)
            match self.random.randrange(5):
                case 0:
                    found[place:place] = self.pick(tokens)
                case 1:
                    del found[place : place + length]
                case 2:
                    found[place:place] = found[place : place + length] * self.random.choice((1, 2, 50))
                case 3 if length:
                    found[place] ^= 1 << self.random.randrange(8)
                case _:
                    del found[self.random.randrange(len(found) + 1) :]
        return bytes(found)

    def _change(self, document: Value, others: Sequence[Value]) -> Value:
        places = walk(document)
        if not places:
            return self.odd_value()
        parent, key = self.pick(places)
        match self.random.randrange(8):
            case 0:
                del parent[key]
            case 1:
                parent[key] = [parent[key]]
            case 2 if isinstance(key, str):
                parent[self.odd_text()] = parent.pop(key)
            case 3 if isinstance(key, str):
                parent[self.odd_text()] = self.odd_value()
            case 4 if isinstance(key, int):
                parent.extend([parent[key]] * self.random.choice((1, 2, 60)))
            case 5:
                other, other_key = self.pick(walk(self.pick(others)) or places if others else places)
                # A copy, or a part would hold itself.
                parent[key] = json.loads(json.dumps(other[other_key]))
            case _:
                parent[key] = self.odd_value()
        return document


def walk(document: Value) -> list[tuple[Value, Any]]:
    """Every place in the document as its container and its key."""
    found: list[tuple[Value, Any]] = []
    waiting = [document]
    while waiting:
        node = waiting.pop()
        keys: list[Any] = list_keys(node)
        found.extend((node, key) for key in keys)
        waiting.extend(node[key] for key in keys)
    return found


def list_keys(node: Value) -> list[Any]:
    """The keys of an object, the places in a list, and nothing of any other value."""
    if isinstance(node, dict):
        return list(cast("dict[str, Value]", node))
    return list(range(len(cast("list[Value]", node)))) if isinstance(node, list) else []


def nest(value: Value, depth: int) -> Value:
    """The value in that many lists or objects."""
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value
