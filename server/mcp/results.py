"""What an MCP tool returns: structured content and the same as text, because hosts show the model only one of them.

Both have a limit. In a result of more than `MAX_STRUCTURED` characters, `{"truncated": true, "sizeBytes", "preview"}`
replaces each long value. Errors are results with `isError`, so that the model can read and correct them; text and
structured content have the same sentence.
"""

import json
from collections.abc import Callable
from typing import Any, cast

from mcp.types import CallToolResult, TextContent
from pydantic import JsonValue

from planwarden.agent.common.artifact import is_stand_in
from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.mcp.text import MAX_TEXT, cut, format_error, is_told
from planwarden.server.views.encoding import to_short_json

MAX_STRUCTURED = 256_000
MAX_WHOLE_VALUE = 2_000
"""Characters of a value that stays whole in a result that is too large."""
_LONG = frozenset({"result", "arguments"})
INTERNAL_CODES = frozenset({"illegal_transition", "conflict"})
"""Codes that no caller can act on; a result has `internal_error` instead."""

Document = dict[str, Any]


def build_view_result(view: object, text: Callable[[Document], str]) -> CallToolResult:
    """A view as a result; `text` renders the same document as text."""
    return build_result(to_short_json(view, lists=True), text)


def build_result(found: JsonValue, text: Callable[[Document], str]) -> CallToolResult:
    """A document as a result; `text` renders it as text."""
    document = make_presentable(found)
    return CallToolResult(
        content=[TextContent(type="text", text=cut(text(document), MAX_TEXT))], structured_content=document
    )


def build_error_result(error: PlanwardenError) -> CallToolResult:
    """The error as a result with `isError`. What its message says is not said again in its details."""
    code = "internal_error" if error.code in INTERNAL_CODES else error.code
    told = {"problems"} if is_told(error.details.get("problems"), error.message) else set[str]()
    details = {key: part for key, part in error.details.items() if key not in told}
    found: JsonValue = {"error": {"code": code, "message": error.message, "details": details}}
    document = make_presentable(found)
    return CallToolResult(
        content=[TextContent(type="text", text=cut(format_error(document["error"]), MAX_TEXT))],
        structured_content=document,
        is_error=True,
    )


def make_presentable(document: JsonValue) -> Document:
    """The document in valid UTF-8 ("?" for lone surrogates); its long values are cut if it is too large."""
    whole = json.dumps(document, ensure_ascii=False)
    try:
        whole.encode()
    except UnicodeEncodeError:
        document = json.loads(whole.encode("utf-8", "replace"))
    if len(whole) > MAX_STRUCTURED:
        document = _shorten(document)
    return cast("Document", document)


def _shorten(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_shorten(child) for child in value]
    if not isinstance(value, dict):
        return value
    return {key: _shorten_value(child) if key in _LONG else _shorten(child) for key, child in value.items()}


def _shorten_value(value: JsonValue) -> JsonValue:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_WHOLE_VALUE:
        return value
    if isinstance(value, list) and any(map(is_stand_in, value)):
        return list(map(_shorten_value, value))
    if isinstance(value, dict) and is_stand_in(value):
        return {**value, "preview": str(value["preview"])[:MAX_WHOLE_VALUE]}
    return {"truncated": True, "sizeBytes": len(text.encode()), "preview": text[:MAX_WHOLE_VALUE]}
