"""The wire formats of providers, and the requests that every provider refuses.

Sources: https://docs.anthropic.com/en/api/messages, https://platform.openai.com/docs/api-reference/chat/create (which
compatible servers speak), https://platform.openai.com/docs/api-reference/responses/create, and for Gemini
https://ai.google.dev/api/generate-content.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.doubles.messages import Arguments, Body, ModelReply, ModelRequest

MODEL = "double-1"
KEY = "sk-double-0123456789abcdefghijklmnopqrstuv"
CREATED = 1_700_000_000
STREAM_METHOD = "streamGenerateContent"
_LEGAL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class RequestRefused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class HttpRequest:
    path: str
    headers: Mapping[str, str]
    body: Body


class Wire:
    name: str
    base_path = ""
    key_variable: str

    @property
    def setting(self) -> str:
        """For `PLANWARDEN_MODEL`."""
        return f"{self.name}:{MODEL}"

    def key(self, http_request: HttpRequest) -> str:
        return http_request.headers.get("authorization", "").removeprefix("Bearer ")

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        """Returns the request. Raises `RequestRefused` when the provider would not accept it."""
        raise NotImplementedError

    def write(self, reply: ModelReply, request: ModelRequest) -> Body:
        raise NotImplementedError

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        """Returns the reply as server-sent events; planwarden streams only texts."""
        raise NotImplementedError

    def error(self, status: int, message: str) -> Body:
        raise NotImplementedError


def expect(condition: object, message: str, status: int = 400) -> None:
    if not condition:
        raise RequestRefused(status, message)


def build_request(
    http_request: HttpRequest,
    number: int,
    declared: Sequence[tuple[str, Body]],
    forced: tuple[str, ...],
    *,
    system: str,
    texts: Sequence[str],
    mode_needs_tools: bool,
) -> ModelRequest:
    """Returns the request with the declared tools. Raises `RequestRefused` for tools that every provider refuses."""
    names = [name for name, _ in declared]
    expect(all(_LEGAL_NAME.fullmatch(name) for name in names), f"illegal tool name in {names}")
    expect(len(set(names)) == len(names), "tool names must be unique")
    expect(set(forced) <= set(names), f"tool_choice names {forced}, which is not among {names}")
    expect(names or not mode_needs_tools, "tool_choice is only allowed when tools are given")
    return ModelRequest(
        number=number,
        system=system,
        text="\n\n".join(texts),
        tools=dict(declared),
        forced=forced,
        body=http_request.body,
        headers=http_request.headers,
        path=http_request.path,
    )


def join_text(content: Any) -> str:
    """Returns the text of a message whose content is a string or a list of typed blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content or ())


def format_events(*bodies: Body) -> list[str]:
    """Returns server-sent events, with a name when the body has a type."""
    named = (f"event: {body['type']}\n" if "type" in body else "" for body in bodies)
    return [f"{name}data: {json.dumps(body)}\n\n" for name, body in zip(named, bodies, strict=True)]


def split_text(reply: ModelReply) -> list[str]:
    """Returns the pieces in which the text is streamed: a few words each, or more when the text is very long."""
    text = reply.text or ""
    size = max(30, len(text) // 200)
    return [text[start : start + size] for start in range(0, len(text), size)]


def count_tokens(text: str) -> int:
    return len(text) // 4 + 1


def count_input_tokens(request: ModelRequest) -> int:
    return sum(map(count_tokens, (request.system, request.text, *map(str, request.tools.values()))))


def count_output_tokens(reply: ModelReply) -> int:
    return count_tokens(reply.text or "") + sum(count_tokens(str(arguments)) for _, arguments in reply.calls)


_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class AnthropicWire(Wire):
    """The key comes in either of the two headers that clients have used."""

    name = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"

    def key(self, http_request: HttpRequest) -> str:
        return http_request.headers.get("x-api-key") or super().key(http_request)

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        body = http_request.body
        expect(http_request.path.split("?")[0] == "/v1/messages", "no such path", 404)
        expect(http_request.headers.get("anthropic-version"), "anthropic-version: header is required")
        expect(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
        expect(body["model"] == MODEL, f"model: {body['model']}", 404)
        messages = body["messages"]
        expect(messages and messages[0]["role"] == "user", "messages: first message must use the user role")
        expect(all(message["role"] in ("user", "assistant") for message in messages), "messages: unexpected role")
        tools = [(tool["name"], tool["input_schema"]) for tool in body.get("tools", ())]
        choice = body.get("tool_choice") or {"type": "auto"}
        forced = {"any": tuple(name for name, _ in tools), "tool": (choice.get("name", ""),)}.get(choice["type"], ())
        return build_request(
            http_request,
            number,
            tools,
            forced,
            system=join_text(body.get("system")),
            texts=[join_text(message["content"]) for message in messages],
            mode_needs_tools=choice["type"] in ("any", "tool"),
        )

    def write(self, reply: ModelReply, request: ModelRequest) -> Body:
        content: list[Body] = [{"type": "text", "text": reply.text}] if reply.text else []
        content += [
            {"type": "tool_use", "id": f"toolu_{index:024}", "name": name, "input": arguments}
            for index, (name, arguments) in enumerate(reply.calls)
        ]
        reason = "tool_use" if reply.calls else "end_turn"
        reason = "max_tokens" if reply.is_cut_short else "refusal" if reply.is_refused else reason
        return {
            "id": f"msg_{request.number:024}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": count_input_tokens(request), "output_tokens": count_output_tokens(reply)},
        }

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        whole = self.write(reply, request)
        usage = whole["usage"]
        opening: Body = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        return format_events(
            {"type": "message_start", "message": opening},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
                for piece in split_text(reply)
            ),
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
                "usage": {"output_tokens": usage["output_tokens"]},
            },
            {"type": "message_stop"},
        )

    def error(self, status: int, message: str) -> Body:
        return {"type": "error", "error": {"type": _TYPES.get(status, "api_error"), "message": message}}


_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
}
_METHODS = {("generateContent", ""), (STREAM_METHOD, "alt=sse")}


def _schema(declared: Body) -> Body:
    """The service reads names in either spelling, and either kind of schema."""
    return declared.get("parametersJsonSchema") or declared.get("parameters_json_schema") or declared["parameters"]


class GeminiWire(Wire):
    name = "google"
    key_variable = "GOOGLE_API_KEY"

    def key(self, http_request: HttpRequest) -> str:
        return http_request.headers.get("x-goog-api-key", "")

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        body = http_request.body
        path, _, query = http_request.path.partition("?")
        model, _, method = path.removeprefix("/v1beta/models/").partition(":")
        expect(model == MODEL, f"models/{model} is not found", 404)
        expect((method, query) in _METHODS, f"{http_request.path} is not found", 404)
        expect(all(content["role"] in ("user", "model") for content in body["contents"]), "unexpected role")
        declared: list[Body] = [
            found for tool in body.get("tools", ()) for found in tool.get("functionDeclarations", ())
        ]
        tools = [(str(found["name"]), _schema(found)) for found in declared]
        calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
        forced: tuple[str, ...] = ()
        if calling.get("mode") == "ANY":
            forced = tuple(calling.get("allowedFunctionNames") or (name for name, _ in tools))
        return build_request(
            http_request,
            number,
            tools,
            forced,
            system=join_text(body.get("systemInstruction", {}).get("parts")),
            texts=[join_text(content["parts"]) for content in body["contents"]],
            mode_needs_tools=calling.get("mode") == "ANY",
        )

    def write(self, reply: ModelReply, request: ModelRequest) -> Body:
        parts: list[Body] = [{"text": reply.text}] if reply.text else []
        parts += [{"functionCall": {"name": name, "args": arguments}} for name, arguments in reply.calls]
        reason = "MAX_TOKENS" if reply.is_cut_short else "SAFETY" if reply.is_refused else "STOP"
        candidate: Body = {"index": 0, "finishReason": reason}
        if any(isinstance(arguments, str) for _, arguments in reply.calls) and not reply.is_cut_short:
            # The service parses calls itself, and reports those it cannot parse instead of passing them on.
            candidate |= {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "Malformed function call"}
        elif any(isinstance(arguments, str) for _, arguments in reply.calls):
            candidate["content"] = {"role": "model", "parts": [{"text": '{"toolCalls": [{"toolName": "'}]}
        elif parts:
            candidate["content"] = {"role": "model", "parts": parts}
        asked_tokens, said_tokens = count_input_tokens(request), count_output_tokens(reply)
        return {
            "candidates": [candidate],
            "usageMetadata": {
                "promptTokenCount": asked_tokens,
                "candidatesTokenCount": said_tokens,
                "totalTokenCount": asked_tokens + said_tokens,
            },
            "modelVersion": MODEL,
            "responseId": f"response-{request.number}",
        }

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        whole = self.write(reply, request)
        usage = whole["usageMetadata"]
        chunks: list[Body] = [
            {
                **whole,
                "candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": piece}]}}],
                "usageMetadata": {**usage, "candidatesTokenCount": 1},
            }
            for piece in split_text(reply)
        ]
        last = {**whole["candidates"][0], "content": {"role": "model", "parts": [{"text": ""}]}}
        return format_events(*chunks, {**whole, "candidates": [last]})

    def error(self, status: int, message: str) -> Body:
        unnamed = "INTERNAL" if status >= 500 else "UNKNOWN"
        return {"error": {"code": status, "message": message, "status": _STATUSES.get(status, unnamed)}}


class OpenAIWire(Wire):
    """What both of OpenAI's formats have in common."""

    base_path = "/v1"
    key_variable = "OPENAI_API_KEY"

    def error(self, status: int, message: str) -> Body:
        codes = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": codes.get(status)}}


def _argument_text(arguments: Arguments | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _forced(choice: Any, tools: Sequence[tuple[str, Body]]) -> tuple[str, ...]:
    """The names of which one must be called, in either format."""
    if isinstance(choice, str):
        return tuple(name for name, _ in tools) if choice == "required" else ()
    if choice["type"] == "function":
        return (choice.get("name") or choice["function"]["name"],)
    allowed = choice.get("allowed_tools", choice)
    names = tuple(tool.get("name") or tool["function"]["name"] for tool in allowed["tools"])
    return names if allowed["mode"] == "required" else ()


class OpenAIChatWire(OpenAIWire):
    name = "openai-chat"

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        body = http_request.body
        expect(http_request.path == "/v1/chat/completions", "no such path", 404)
        expect(body["model"] == MODEL, f"The model '{body['model']}' does not exist", 404)
        roles = {message["role"] for message in body["messages"]}
        expect(roles <= {"system", "developer", "user", "assistant", "tool"}, f"unexpected roles {roles}")
        functions = [tool["function"] for tool in body.get("tools", ())]
        tools = [(function["name"], function["parameters"]) for function in functions]
        choice = body.get("tool_choice", "auto")
        forced = _forced(choice, tools)
        spoken = [(message["role"], join_text(message.get("content"))) for message in body["messages"]]
        return build_request(
            http_request,
            number,
            tools,
            forced,
            system="\n\n".join(text for role, text in spoken if role in ("system", "developer")),
            texts=[text for role, text in spoken if role == "user"],
            mode_needs_tools=bool(forced) or choice == "required",
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


class OpenAIResponsesWire(OpenAIWire):
    name = "openai-responses"

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        body = http_request.body
        expect(http_request.path == "/v1/responses", "no such path", 404)
        expect(body["model"] == MODEL, f"The requested model '{body['model']}' does not exist", 404)
        tools = [(tool["name"], tool["parameters"]) for tool in body.get("tools", ())]
        choice = body.get("tool_choice", "auto")
        forced = _forced(choice, tools)
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        instructions = [body.get("instructions") or ""]
        instructions += [join_text(item["content"]) for item in items if item["role"] in ("system", "developer")]
        return build_request(
            http_request,
            number,
            tools,
            forced,
            system="\n\n".join(instructions).strip(),
            texts=[join_text(item["content"]) for item in items if item["role"] == "user"],
            mode_needs_tools=bool(forced) or choice == "required",
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
