"""Anthropic's Messages API, not streamed.

Source: https://docs.anthropic.com/en/api/messages, version 2023-06-01.
"""

from tests.doubles.asked import Asked, Body, Said
from tests.doubles.wire import MODEL, Received, check_tools, expect, input_tokens, joined, output_tokens

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class AnthropicWire:
    name = "anthropic"
    setting = f"anthropic:{MODEL}"
    base_path = ""
    key_variable = "ANTHROPIC_API_KEY"

    def key(self, received: Received) -> str:
        return received.headers.get("x-api-key", "")

    def read(self, received: Received, number: int) -> Asked:
        body = received.body
        expect(received.path.split("?")[0] == "/v1/messages", "no such path", 404)
        expect(received.headers.get("anthropic-version") == "2023-06-01", "anthropic-version: header is required")
        expect(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
        expect(body["model"] == MODEL, f"model: {body['model']}", 404)
        messages = body["messages"]
        expect(messages and messages[0]["role"] == "user", "messages: first message must use the user role")
        expect(all(message["role"] in ("user", "assistant") for message in messages), "messages: unexpected role")
        expect(not body.get("stream"), "the double does not stream")
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

    def error(self, status: int, message: str) -> Body:
        return {"type": "error", "error": {"type": _TYPES.get(status, "api_error"), "message": message}}
