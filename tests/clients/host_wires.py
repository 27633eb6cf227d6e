"""The wire formats as hosts use them: hosts also stream calls, and send more kinds of items than planwarden.

Ids of calls contain the number of the request, because hosts drop a second result with the same id. A model without a
memory finds its place in the script by counting the results in a request.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.support.doubles.messages import Body, ModelReply, ModelRequest
from tests.support.doubles.wire import MODEL, HttpRequest, expect, format_events
from tests.support.doubles.wire_anthropic import AnthropicWire
from tests.support.doubles.wire_gemini import GeminiWire
from tests.support.doubles.wire_openai import CREATED, OpenAIChatWire, OpenAIResponsesWire


class HostAnthropicWire(AnthropicWire):
    """Claude Code. Its side questions use an alias of the model, and it counts tokens, which the double refuses."""

    results = '"type": "tool_result"'

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        """Reads only what the double needs; the real service accepts more kinds of tools and messages."""
        body = http_request.body
        expect(http_request.path.split("?")[0] == "/v1/messages", "no such path", 404)
        tools = {tool["name"]: tool.get("input_schema", {}) for tool in body.get("tools", ())}
        return _build_request(http_request, number, tools)

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        if not reply.calls:
            return super().stream(reply, request)
        whole = self.write(reply, request)
        blocks: list[Body] = []
        for index, block in enumerate(whole["content"]):
            block["id"] = f"{block['id']}_{request.number}"
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
        return format_events(
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

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        expect(http_request.path == "/v1/chat/completions", "no such path", 404)
        functions = [tool["function"] for tool in http_request.body.get("tools", ())]
        return _build_request(
            http_request, number, {function["name"]: function["parameters"] for function in functions}
        )

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        if not reply.calls:
            return super().stream(reply, request)
        whole = self.write(reply, request)
        message = whole["choices"][0]["message"]
        calls = [
            {**call, "id": f"{call['id']}_{request.number}", "index": index}
            for index, call in enumerate(message["tool_calls"])
        ]
        common = {"id": whole["id"], "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}
        deltas: list[tuple[Body, str | None]] = [({"role": "assistant", "tool_calls": calls}, None), ({}, "tool_calls")]
        chunks = [{**common, "choices": [{"index": 0, "delta": d, "finish_reason": r}]} for d, r in deltas]
        chunks.append({**common, "choices": [], "usage": whole["usage"]})
        return [*format_events(*chunks), "data: [DONE]\n\n"]


class HostResponsesWire(OpenAIResponsesWire):
    """Codex CLI."""

    results = '"type": "function_call_output"'

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        expect(http_request.path == "/v1/responses", "no such path", 404)
        return _build_request(http_request, number, dict(_find_functions(http_request.body.get("tools", []))))

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        if not reply.calls:
            return super().stream(reply, request)
        whole = self.write(reply, request)
        for item in whole["output"]:
            _fill_ids(item, request)
        items = [
            {"type": "response.output_item.done", "output_index": i, "item": x} for i, x in enumerate(whole["output"])
        ]
        bodies: list[Body] = [
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
            *items,
            {"type": "response.completed", "response": whole},
        ]
        return format_events(*({**body, "sequence_number": number} for number, body in enumerate(bodies)))


class HostGeminiWire(GeminiWire):
    """Gemini CLI."""

    results = '"functionResponse"'

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        expect(":" in http_request.path and "enerateContent" in http_request.path, "no such path", 404)
        declared = [
            found for tool in http_request.body.get("tools", ()) for found in tool.get("functionDeclarations", ())
        ]
        return _build_request(http_request, number, {str(found["name"]): {} for found in declared})

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        return format_events(self.write(reply, request)) if reply.calls else super().stream(reply, request)


HostWire = HostAnthropicWire | HostChatWire | HostResponsesWire | HostGeminiWire


def count_results(wire: HostWire, request: ModelRequest) -> int:
    """Returns the number of results of calls in the request."""
    return json.dumps(request.body).count(wire.results)


def _build_request(http_request: HttpRequest, number: int, tools: dict[str, Body]) -> ModelRequest:
    made = ModelRequest(number=number, system="", text="", tools=tools)
    return replace(made, body=http_request.body, headers=http_request.headers, path=http_request.path)


def _find_functions(tools: list[Body], namespace: str = "") -> Iterator[tuple[str, Body]]:
    """Yields names and schemas; a name in a namespace becomes `namespace/name`."""
    for tool in tools:
        if tool["type"] == "namespace":
            yield from _find_functions(tool["tools"], f"{tool['name']}/")
        elif tool["type"] == "function":
            yield namespace + tool["name"], tool.get("parameters", {})


def _fill_ids(item: dict[str, Any], request: ModelRequest) -> None:
    """Writes a call's namespace into its own field, and the number of the request into its id."""
    namespace, slash, name = str(item.get("name", "")).partition("/")
    if slash:
        item |= {"namespace": namespace, "name": name}
    if "call_id" in item:
        item["call_id"] = f"{item['call_id']}_{request.number}"
