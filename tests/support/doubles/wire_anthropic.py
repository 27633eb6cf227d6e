"""Anthropic's Messages API.

Source: https://docs.anthropic.com/en/api/messages. The key comes in either of the two headers that clients have used.
"""

from tests.support.doubles.asked import Asked, Body, Said
from tests.support.doubles.wire import (
    MODEL,
    Received,
    check_tools,
    events,
    expect,
    input_tokens,
    joined,
    output_tokens,
    pieces,
)

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class AnthropicWire:
    name = "anthropic"
    setting = f"anthropic:{MODEL}"
    base_path = ""
    key_variable = "ANTHROPIC_API_KEY"

    def key(self, received: Received) -> str:
        return received.headers.get("x-api-key") or received.headers.get("authorization", "").removeprefix("Bearer ")

    def read(self, received: Received, number: int) -> Asked:
        body = received.body
        expect(received.path.split("?")[0] == "/v1/messages", "no such path", 404)
        expect(received.headers.get("anthropic-version"), "anthropic-version: header is required")
        expect(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
        expect(body["model"] == MODEL, f"model: {body['model']}", 404)
        messages = body["messages"]
        expect(messages and messages[0]["role"] == "user", "messages: first message must use the user role")
        expect(all(message["role"] in ("user", "assistant") for message in messages), "messages: unexpected role")
        tools = {tool["name"]: tool["input_schema"] for tool in body.get("tools", ())}
        choice = body.get("tool_choice") or {"type": "auto"}
        forced = {"any": tuple(tools), "tool": (choice.get("name", ""),)}.get(choice["type"], ())
        check_tools(list(tools), forced, choice["type"] in ("any", "tool"))
        return Asked(
            number=number,
            system=joined(body.get("system")),
            text="\n\n".join(joined(message["content"]) for message in messages),
            tools=tools,
            forced=forced,
            body=body,
            headers=received.headers,
            path=received.path,
        )

    def write(self, said: Said, asked: Asked) -> Body:
        content: list[Body] = [{"type": "text", "text": said.text}] if said.text else []
        content += [
            {"type": "tool_use", "id": f"toolu_{index:024}", "name": name, "input": arguments}
            for index, (name, arguments) in enumerate(said.calls)
        ]
        reason = "tool_use" if said.calls else "end_turn"
        reason = "max_tokens" if said.is_cut_short else "refusal" if said.is_refused else reason
        return {
            "id": f"msg_{asked.number:024}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": input_tokens(asked), "output_tokens": output_tokens(said)},
        }

    def stream(self, said: Said, asked: Asked) -> list[str]:
        whole = self.write(said, asked)
        usage = whole["usage"]
        opening: Body = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        return events(
            {"type": "message_start", "message": opening},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
                for piece in pieces(said)
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
