"""Google's generateContent, not streamed.

Source: https://ai.google.dev/api/generate-content, version v1beta.
"""

from tests.doubles.asked import Asked, Body, Said
from tests.doubles.wire import MODEL, Received, check_tools, expect, input_tokens, joined, output_tokens

_STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}


class GeminiWire:
    name = "google"
    setting = f"google:{MODEL}"
    base_path = ""
    key_variable = "GOOGLE_API_KEY"

    def key(self, received: Received) -> str:
        return received.headers.get("x-goog-api-key", "")

    def read(self, received: Received, number: int) -> Asked:
        body = received.body
        path = f"/v1beta/models/{MODEL}:generateContent"
        expect(received.path.split("?")[0] == path, f"{received.path} is not found", 404)
        expect(all(content["role"] in ("user", "model") for content in body["contents"]), "unexpected role")
        declared: list[Body] = [
            found for tool in body.get("tools", ()) for found in tool.get("functionDeclarations", ())
        ]
        tools = {
            found["name"]: found.get("parametersJsonSchema") or found.get("parameters") or {} for found in declared
        }
        calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
        forced: tuple[str, ...] = ()
        if calling.get("mode") == "ANY":
            forced = tuple(calling.get("allowedFunctionNames") or tools)
        check_tools([found["name"] for found in declared], forced, calling.get("mode") == "ANY")
        return Asked(
            number=number,
            system=joined(body.get("systemInstruction", {}).get("parts")),
            text="\n\n".join(joined(content["parts"]) for content in body["contents"]),
            tools=tools,
            forced=forced,
            body=body,
            headers=received.headers,
        )

    def write(self, said: Said, asked: Asked) -> Body:
        parts: list[Body] = [{"text": said.text}] if said.text else []
        parts += [{"functionCall": {"name": name, "args": arguments}} for name, arguments in said.calls]
        reason = "MAX_TOKENS" if said.is_cut_short else "SAFETY" if said.is_refused else "STOP"
        candidate: Body = {"index": 0, "finishReason": reason}
        if any(isinstance(arguments, str) for _, arguments in said.calls) and not said.is_cut_short:
            # The service parses calls itself, and reports those it cannot parse instead of passing them on.
            candidate |= {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "Malformed function call"}
        elif any(isinstance(arguments, str) for _, arguments in said.calls):
            candidate["content"] = {"role": "model", "parts": [{"text": '{"toolCalls": [{"toolName": "'}]}
        elif parts:
            candidate["content"] = {"role": "model", "parts": parts}
        asked_tokens, said_tokens = input_tokens(asked), output_tokens(said)
        return {
            "candidates": [candidate],
            "usageMetadata": {
                "promptTokenCount": asked_tokens,
                "candidatesTokenCount": said_tokens,
                "totalTokenCount": asked_tokens + said_tokens,
            },
            "modelVersion": MODEL,
            "responseId": f"response-{asked.number}",
        }

    def error(self, status: int, message: str) -> Body:
        return {"error": {"code": status, "message": message, "status": _STATUSES.get(status, "INTERNAL")}}
