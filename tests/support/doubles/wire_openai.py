"""OpenAI's two formats: Chat Completions, which compatible servers speak, and Responses.

Sources: https://platform.openai.com/docs/api-reference/chat/create and
https://platform.openai.com/docs/api-reference/responses/create.
"""

import json
from collections.abc import Mapping
from typing import Any

from tests.support.doubles.messages import Arguments, Body, ModelReply, ModelRequest
from tests.support.doubles.wire import (
    MODEL,
    HttpRequest,
    check_tools,
    count_input_tokens,
    count_output_tokens,
    expect,
    format_events,
    join_text,
    split_text,
)

CREATED = 1_700_000_000


def _key(http_request: HttpRequest) -> str:
    return http_request.headers.get("authorization", "").removeprefix("Bearer ")


def _error(status: int, message: str) -> Body:
    codes = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": codes.get(status)}}


def _argument_text(arguments: Arguments | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _forced(choice: Any, tools: Mapping[str, Body]) -> tuple[str, ...]:
    """The names of which one must be called, in either format."""
    if isinstance(choice, str):
        return tuple(tools) if choice == "required" else ()
    if choice["type"] == "function":
        return (choice.get("name") or choice["function"]["name"],)
    allowed = choice.get("allowed_tools", choice)
    names = tuple(tool.get("name") or tool["function"]["name"] for tool in allowed["tools"])
    return names if allowed["mode"] == "required" else ()


class OpenAIChatWire:
    name = "openai-chat"
    setting = f"openai-chat:{MODEL}"
    base_path = "/v1"
    key_variable = "OPENAI_API_KEY"

    def key(self, http_request: HttpRequest) -> str:
        return _key(http_request)

    def error(self, status: int, message: str) -> Body:
        return _error(status, message)

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        body = http_request.body
        expect(http_request.path == "/v1/chat/completions", "no such path", 404)
        expect(body["model"] == MODEL, f"The model '{body['model']}' does not exist", 404)
        roles = {message["role"] for message in body["messages"]}
        expect(roles <= {"system", "developer", "user", "assistant", "tool"}, f"unexpected roles {roles}")
        functions = [tool["function"] for tool in body.get("tools", ())]
        tools = {function["name"]: function["parameters"] for function in functions}
        choice = body.get("tool_choice", "auto")
        forced = _forced(choice, tools)
        check_tools([function["name"] for function in functions], forced, bool(forced) or choice == "required")
        spoken = [(message["role"], join_text(message.get("content"))) for message in body["messages"]]
        return ModelRequest(
            number=number,
            system="\n\n".join(text for role, text in spoken if role in ("system", "developer")),
            text="\n\n".join(text for role, text in spoken if role == "user"),
            tools=tools,
            forced=forced,
            body=body,
            headers=http_request.headers,
            path=http_request.path,
        )

    def write(self, reply: ModelReply, request: ModelRequest) -> Body:
        calls = [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": name, "arguments": _argument_text(arguments)},
            }
            for index, (name, arguments) in enumerate(reply.calls)
        ]
        message: Body = {"role": "assistant", "content": reply.text, "refusal": None}
        reason = "tool_calls" if calls else "stop"
        if calls:
            message["tool_calls"] = calls
        if reply.is_refused:
            reason = "content_filter"
        asked_tokens, said_tokens = count_input_tokens(request), count_output_tokens(reply)
        return {
            "id": f"chatcmpl-{request.number}",
            "object": "chat.completion",
            "created": CREATED,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": "length" if reply.is_cut_short else reason,
                }
            ],
            "usage": {
                "prompt_tokens": asked_tokens,
                "completion_tokens": said_tokens,
                "total_tokens": asked_tokens + said_tokens,
            },
        }

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        whole = self.write(reply, request)
        common = {"id": whole["id"], "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}
        reason = whole["choices"][0]["finish_reason"]
        deltas: list[Body] = [
            {"role": "assistant", "content": ""},
            *({"content": piece} for piece in split_text(reply)),
        ]
        chunks: list[Body] = [
            {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
        ]
        chunks.append({**common, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if request.body.get("stream_options", {}).get("include_usage"):
            chunks.append({**common, "choices": [], "usage": whole["usage"]})
        return [*format_events(*chunks), "data: [DONE]\n\n"]


class OpenAIResponsesWire:
    name = "openai-responses"
    setting = f"openai-responses:{MODEL}"
    base_path = "/v1"
    key_variable = "OPENAI_API_KEY"

    def key(self, http_request: HttpRequest) -> str:
        return _key(http_request)

    def error(self, status: int, message: str) -> Body:
        return _error(status, message)

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        body = http_request.body
        expect(http_request.path == "/v1/responses", "no such path", 404)
        expect(body["model"] == MODEL, f"The requested model '{body['model']}' does not exist", 404)
        listed = body.get("tools", [])
        tools = {tool["name"]: tool["parameters"] for tool in listed}
        choice = body.get("tool_choice", "auto")
        forced = _forced(choice, tools)
        check_tools([tool["name"] for tool in listed], forced, bool(forced) or choice == "required")
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        instructions = [body.get("instructions") or ""]
        instructions += [join_text(item["content"]) for item in items if item["role"] in ("system", "developer")]
        return ModelRequest(
            number=number,
            system="\n\n".join(instructions).strip(),
            text="\n\n".join(join_text(item["content"]) for item in items if item["role"] == "user"),
            tools=tools,
            forced=forced,
            body=body,
            headers=http_request.headers,
            path=http_request.path,
        )

    def write(self, reply: ModelReply, request: ModelRequest) -> Body:
        output: list[Body] = []
        if reply.text or reply.is_refused:
            block: Body = {"type": "output_text", "text": reply.text or "", "annotations": []}
            if reply.is_refused:
                block = {"type": "refusal", "refusal": "I cannot help with that."}
            output.append(
                {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [block]}
            )
        output += [
            {
                "type": "function_call",
                "id": f"fc_{index}",
                "call_id": f"call_{index}",
                "name": name,
                "arguments": _argument_text(arguments),
                "status": "completed",
            }
            for index, (name, arguments) in enumerate(reply.calls)
        ]
        asked_tokens, said_tokens = count_input_tokens(request), count_output_tokens(reply)
        return {
            "id": f"resp_{request.number}",
            "object": "response",
            "created_at": CREATED,
            "status": "incomplete" if reply.is_cut_short else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if reply.is_cut_short else None,
            "error": None,
            "instructions": None,
            "metadata": {},
            "model": MODEL,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": asked_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": said_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": asked_tokens + said_tokens,
            },
        }

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        whole = self.write(reply, request)
        [message] = whole["output"]
        place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
        empty: Body = {"type": "output_text", "text": "", "annotations": []}
        bodies: list[Body] = [
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**message, "content": []}},
            {"type": "response.content_part.added", **place, "part": empty},
            *(
                {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
                for piece in split_text(reply)
            ),
            {"type": "response.output_text.done", **place, "text": reply.text, "logprobs": []},
            {"type": "response.content_part.done", **place, "part": message["content"][0]},
            {"type": "response.output_item.done", "output_index": 0, "item": message},
            {"type": "response.completed", "response": whole},
        ]
        return format_events(*({**body, "sequence_number": number} for number, body in enumerate(bodies)))
