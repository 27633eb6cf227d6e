"""The doubles' wires as hosts use them: hosts stream everything, calls included, and send more kinds of items than planwarden does.
Ids of calls are told apart by the number of the request: hosts drop a second result under the same id.

`steps_taken` counts the results of calls in a request, which is how a model without a memory knows where it is.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.support.doubles.asked import Asked, Body, Said
from tests.support.doubles.wire import MODEL, Received, events, expect
from tests.support.doubles.wire_anthropic import AnthropicWire
from tests.support.doubles.wire_gemini import GeminiWire
from tests.support.doubles.wire_openai import CREATED, OpenAIChatWire, OpenAIResponsesWire


class HostAnthropicWire(AnthropicWire):
    """Claude Code; it asks for an alias of the model in its side questions, and counts tokens, which is refused."""

    results = '"type": "tool_result"'

    def read(self, received: Received, number: int) -> Asked:
        """Only what is needed to go on; the real service takes kinds of tools and messages that the double does not know."""
        body = received.body
        expect(received.path.split("?")[0] == "/v1/messages", "no such path", 404)
        tools = {tool["name"]: tool.get("input_schema", {}) for tool in body.get("tools", ())}
        return _asked(received, number, tools)

    def stream(self, said: Said, asked: Asked) -> list[str]:
        if not said.calls:
            return super().stream(said, asked)
        whole = self.write(said, asked)
        blocks: list[Body] = []
        for index, block in enumerate(whole["content"]):
            block["id"] = f"{block['id']}_{asked.number}"
            arguments = json.dumps(block["input"])
            blocks += [
                {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}},
                {
                    "type": "content_block_delta",
                    "index": index,
                    "delta": {"type": "input_json_delta", "partial_json": arguments},
                },
                {"type": "content_block_stop", "index": index},
            ]
        return events(
            {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
            *blocks,
            {
                "type": "message_delta",
                "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
                "usage": whole["usage"],
            },
            {"type": "message_stop"},
        )


class HostChatWire(OpenAIChatWire):
    """opencode."""

    results = '"role": "tool"'

    def read(self, received: Received, number: int) -> Asked:
        expect(received.path == "/v1/chat/completions", "no such path", 404)
        functions = [tool["function"] for tool in received.body.get("tools", ())]
        return _asked(received, number, {function["name"]: function["parameters"] for function in functions})

    def stream(self, said: Said, asked: Asked) -> list[str]:
        if not said.calls:
            return super().stream(said, asked)
        whole = self.write(said, asked)
        message = whole["choices"][0]["message"]
        calls = [
            {**call, "id": f"{call['id']}_{asked.number}", "index": index}
            for index, call in enumerate(message["tool_calls"])
        ]
        common = {"id": whole["id"], "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}
        deltas: list[tuple[Body, str | None]] = [({"role": "assistant", "tool_calls": calls}, None), ({}, "tool_calls")]
        chunks = [{**common, "choices": [{"index": 0, "delta": d, "finish_reason": r}]} for d, r in deltas]
        chunks.append({**common, "choices": [], "usage": whole["usage"]})
        return [*events(*chunks), "data: [DONE]\n\n"]


class HostResponsesWire(OpenAIResponsesWire):
    """Codex CLI."""

    results = '"type": "function_call_output"'

    def read(self, received: Received, number: int) -> Asked:
        expect(received.path == "/v1/responses", "no such path", 404)
        return _asked(received, number, dict(_functions(received.body.get("tools", []))))

    def stream(self, said: Said, asked: Asked) -> list[str]:
        if not said.calls:
            return super().stream(said, asked)
        whole = self.write(said, asked)
        for item in whole["output"]:
            _place(item, asked)
        items = [
            {"type": "response.output_item.done", "output_index": i, "item": x} for i, x in enumerate(whole["output"])
        ]
        bodies: list[Body] = [
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
            *items,
            {"type": "response.completed", "response": whole},
        ]
        return events(*({**body, "sequence_number": number} for number, body in enumerate(bodies)))


class HostGeminiWire(GeminiWire):
    """Gemini CLI."""

    results = '"functionResponse"'

    def read(self, received: Received, number: int) -> Asked:
        expect(":" in received.path and "enerateContent" in received.path, "no such path", 404)
        declared = [found for tool in received.body.get("tools", ()) for found in tool.get("functionDeclarations", ())]
        return _asked(received, number, {str(found["name"]): {} for found in declared})

    def stream(self, said: Said, asked: Asked) -> list[str]:
        return events(self.write(said, asked)) if said.calls else super().stream(said, asked)


HostWire = HostAnthropicWire | HostChatWire | HostResponsesWire | HostGeminiWire


def steps_taken(wire: HostWire, asked: Asked) -> int:
    """Results of calls in the request."""
    return json.dumps(asked.body).count(wire.results)


def _asked(received: Received, number: int, tools: dict[str, Body]) -> Asked:
    made = Asked(number=number, system="", text="", tools=tools)
    return replace(made, body=received.body, headers=received.headers, path=received.path)


def _functions(tools: list[Body], namespace: str = "") -> Iterator[tuple[str, Body]]:
    """Names and schemas; those of a namespace are written `namespace/name`."""
    for tool in tools:
        if tool["type"] == "namespace":
            yield from _functions(tool["tools"], f"{tool['name']}/")
        elif tool["type"] == "function":
            yield namespace + tool["name"], tool.get("parameters", {})


def _place(item: dict[str, Any], asked: Asked) -> None:
    """Write a call's namespace into its own field, and the number of the request into its id."""
    namespace, slash, name = str(item.get("name", "")).partition("/")
    if slash:
        item |= {"namespace": namespace, "name": name}
    if "call_id" in item:
        item["call_id"] = f"{item['call_id']}_{asked.number}"
