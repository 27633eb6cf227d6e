"""Anthropic's Messages API.

Source: https://docs.anthropic.com/en/api/messages. The key comes in either of the two headers that clients have used.
"""

from tests.support.doubles.messages import Body, ModelReply, ModelRequest
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

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class AnthropicWire:
    name = "anthropic"
    setting = f"anthropic:{MODEL}"
    base_path = ""
    key_variable = "ANTHROPIC_API_KEY"

    def key(self, http_request: HttpRequest) -> str:
        return http_request.headers.get("x-api-key") or http_request.headers.get("authorization", "").removeprefix(
            "Bearer "
        )

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        body = http_request.body
        expect(http_request.path.split("?")[0] == "/v1/messages", "no such path", 404)
        expect(http_request.headers.get("anthropic-version"), "anthropic-version: header is required")
        expect(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
        expect(body["model"] == MODEL, f"model: {body['model']}", 404)
        messages = body["messages"]
        expect(messages and messages[0]["role"] == "user", "messages: first message must use the user role")
        expect(all(message["role"] in ("user", "assistant") for message in messages), "messages: unexpected role")
        tools = {tool["name"]: tool["input_schema"] for tool in body.get("tools", ())}
        choice = body.get("tool_choice") or {"type": "auto"}
        forced = {"any": tuple(tools), "tool": (choice.get("name", ""),)}.get(choice["type"], ())
        check_tools(list(tools), forced, choice["type"] in ("any", "tool"))
        return ModelRequest(
            number=number,
            system=join_text(body.get("system")),
            text="\n\n".join(join_text(message["content"]) for message in messages),
            tools=tools,
            forced=forced,
            body=body,
            headers=http_request.headers,
            path=http_request.path,
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
