"""Seeded inputs, made from real messages: documents changed in a few places, odd values, damaged text."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

from mcp.types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from tests.support.wardens import model_step, plan, tool_step

Document = dict[str, Any]

FORM: Document = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[A-Za-z ]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colour": {"type": "string", "enum": ["red", "green"]},
        "news": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
    },
    "required": ["name"],
}
ASK_FORM = tool_step("form", "requestInput", {"message": "Who is it?", "form": FORM})
PLANS: tuple[Document, ...] = (
    plan(tool_step("a", "calculator", {"expression": "6 * (7 + 1)"})),
    plan(
        tool_step("find", "find", {"topic": "owls", "limit": 2}),
        tool_step("note", "note", {"text": {"$from": "find", "pointer": "/topic"}}, dependencies=["find"]),
    ),
    plan(
        tool_step("x", "find", {"topic": "x"}),
        tool_step("ask", "displayConfirmation", {"action": "Delete?", "details": {"$from": "x"}}, dependencies=["x"]),
    ),
    plan(
        tool_step("ask", "displayConfirmation", {"action": "Write it?", "details": [1, 2]}, confirms=["b"]),
        tool_step("b", "note", {"text": "y"}, onReject="stop"),
    ),
    plan(ASK_FORM, tool_step("c", "note", {"text": {"$from": "form", "pointer": "/content/name"}})),
    plan(tool_step("a", "send", {"to": "ann", "copies": 2, "urgent": True})),
    plan(tool_step("a", "erase", {"ids": [1, 2]})),
    plan(tool_step("a", "wait", {"seconds": 3600}), tool_step("b", "broken", {}, toolValidationMode="advisory")),
    plan(model_step("m", "find", expectedOutcome="ids", stepType="tool"), {"id": "r", "description": "think"}),
    {"steps": [{"id": "1", "description": "say it", "status": "completed", "result": "x"}]},
)
OPTIONS: Document = {
    "waitSeconds": 0.2,
    "maxIterations": 3,
    "taefMaxRetries": 1,
    "toolMode": "flexible",
    "synthesize": True,
    "budgets": {"modelTokens": 1000, "toolCalls": 5, "seconds": 60},
    "prompts": {"planning": "plan it", "execution": "do it", "synthesis": "sum it up"},
}
APPROVE: Document = {"approved": True}
DECISIONS: tuple[Document, ...] = (
    APPROVE,
    {"approved": False, "reason": "too early"},
    {"approved": True, "modifiedArgs": {"to": "bob", "copies": 1}},
    {"content": {"name": "Ada", "age": 36, "colour": "red", "tags": ["a"]}},
    {"content": {"happened": True, "result": 1}},
)
CONTENTS: tuple[Document, ...] = (
    {"toolCalls": [{"toolName": "find", "arguments": {"topic": "owls"}}]},
    {"content": "It is done.", "toolCalls": []},
    {"content": '---JSON_OUTPUT_START---\n{"toolCalls": []}\n---JSON_OUTPUT_END---'},
    PLANS[0],
    {"name": "Ada", "age": 36},
)
FORM_ANSWERS: tuple[Document, ...] = (
    {"decision": {"action": "accept", "content": {"decision": "approve"}}},
    {"decision": {"action": "accept", "content": {"name": "Ada", "age": 36, "news": True}}},
    {"decision": {"action": "decline"}},
    {"decision": {"action": "cancel"}},
)
CAPABILITIES: tuple[Document, ...] = (
    {},
    {"elicitation": {"form": {}}},
    {"elicitation": {"form": {}, "url": {}}},
    {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}},
)
VERSIONS = (LATEST_MODERN_VERSION, LATEST_HANDSHAKE_VERSION, "2024-11-05", "2099-01-01", "", "latest")


def tool_calls(thread_id: str, suspension_id: str) -> tuple[tuple[str, Document], ...]:
    """A correct call of each MCP tool, with these ids."""
    ids: Document = {"threadId": thread_id, "suspensionId": suspension_id}
    return (
        ("search_tools", {"query": "calculate", "limit": 5}),
        ("search_tools", {"cursor": "20"}),
        ("get_tool_schemas", {"names": ["calculator", "nope"]}),
        ("create_plan", {"goal": "owls", "options": OPTIONS}),
        ("run_goal", {"goal": "owls", "threadId": thread_id, "options": OPTIONS}),
        ("run_goal", {"goal": "count to three"}),
        ("execute_plan", {"plan": PLANS[1], "goal": "owls", "options": OPTIONS}),
        ("execute_plan", {"threadId": thread_id}),
        ("run_plan", {"name": "letter", "inputs": {"to": "ann"}, "threadId": thread_id, "options": OPTIONS}),
        ("retry_execution", {"threadId": thread_id, "fromStep": "a", "inputs": {}, "plan": PLANS[1], "waitSeconds": 0}),
        ("ask_person", {"message": "Which seat?", "form": {"type": "object"}, "details": {"row": 7}, "waitSeconds": 0}),
        ("get_execution", {"threadId": thread_id, "observationsAfter": 0}),
        ("list_suspensions", {"threadId": thread_id, "addressee": "human", "limit": 5}),
        ("list_suspensions", {"cursor": "x"}),
        ("submit_answer", {**ids, "content": CONTENTS[0], "waitSeconds": 0.1}),
        ("resume_execution", {**ids, "decision": DECISIONS[1], "waitSeconds": 0.1}),
        ("app_decide", {**ids, "nonce": "abc", "content": {"decision": "approve"}, "waitSeconds": 0}),
        ("cancel_execution", {"threadId": thread_id, "reason": "enough"}),
    )


def requests(thread_id: str, suspension_id: str) -> tuple[tuple[str, Document], ...]:
    """A correct request of each MCP method, with these ids."""
    uri = f"planwarden://threads/{thread_id}"
    return (
        ("initialize", {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": CLIENT}),
        ("server/discover", {}),
        ("ping", {}),
        ("tools/list", {"cursor": "x"}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": uri}),
        ("resources/read", {"uri": "planwarden://tools/calculator"}),
        ("resources/subscribe", {"uri": uri}),
        ("resources/unsubscribe", {"uri": uri}),
        ("prompts/list", {}),
        ("prompts/get", {"name": "run_goal", "arguments": {"goal": "owls"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "run_goal"}, "argument": ARGUMENT}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": uri}, "argument": ARGUMENT}),
        ("tasks/get", {"taskId": thread_id}),
        ("tasks/update", {"taskId": thread_id, "inputResponses": {suspension_id: FORM_ANSWERS[0]["decision"]}}),
        ("tasks/cancel", {"taskId": thread_id}),
        ("logging/setLevel", {"level": "debug"}),
        ("notifications/initialized", {}),
        ("notifications/cancelled", {"requestId": 1, "reason": "x"}),
        ("notifications/progress", {"progressToken": 1, "progress": 0.5}),
        *(("tools/call", {"name": name, "arguments": given}) for name, given in tool_calls(thread_id, suspension_id)),
    )


CLIENT: Document = {"name": "fuzz", "version": "1"}
ARGUMENT: Document = {"name": "goal", "value": "o"}


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
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value
