"""Google's generateContent and streamGenerateContent.

Source: https://ai.google.dev/api/generate-content, version v1beta.
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

STREAM_METHOD = "streamGenerateContent"
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


class GeminiWire:
    name = "google"
    setting = f"google:{MODEL}"
    base_path = ""
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
        tools = {str(found["name"]): _schema(found) for found in declared}
        calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
        forced: tuple[str, ...] = ()
        if calling.get("mode") == "ANY":
            forced = tuple(calling.get("allowedFunctionNames") or tools)
        check_tools([found["name"] for found in declared], forced, calling.get("mode") == "ANY")
        return ModelRequest(
            number=number,
            system=join_text(body.get("systemInstruction", {}).get("parts")),
            text="\n\n".join(join_text(content["parts"]) for content in body["contents"]),
            tools=tools,
            forced=forced,
            body=body,
            headers=http_request.headers,
            path=http_request.path,
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
