"""What an MCP tool returns: structured content and the same as text, because hosts show the model only one of them.

Both have a limit. In a result of more than `MAX_STRUCTURED` characters, `{"truncated": true, "sizeBytes", "preview"}`
replaces each long `result` and `arguments`. If that is not enough, lists keep fewer entries, next to their full count
(`stepsCount` for `steps`), and then long texts keep only their beginning. Errors are results with `isError`, so that
the model can read them and correct its call; the text and the structured content have the same message.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from mcp.types import CallToolResult, TextContent
from pydantic import JsonValue

from planwarden.agent.common.artifact import is_stand_in
from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.mcp.text import MAX_TEXT, cut, format_error, is_in_message
from planwarden.server.views.encoding import to_short_json

MAX_STRUCTURED = 256_000
LISTED_ROWS = 20
"""The most rows of a question about many calls that a list of questions shows."""
LIST_LENGTHS = (100, 20, 5, 1)
"""The most entries that each list keeps; tried in turn while the result is too large."""
VALUE_LENGTHS = (2_000, 200)
"""The most characters of a value that stays whole; tried in turn while the result is too large."""
_LONG = frozenset({"result", "arguments"})
_CUT = {"truncated", "sizeBytes", "preview"}
INTERNAL_CODES = frozenset({"illegal_transition", "conflict"})
"""Codes that no caller can act on; a result has `internal_error` instead."""

Document = dict[str, Any]


def build_view_result(view: object, text: Callable[[Document], str]) -> CallToolResult:
    """Return a view as a result; `text` renders the same document as text."""
    return build_result(to_short_json(view, lists=True), text)


def build_result(content: JsonValue, text: Callable[[Document], str]) -> CallToolResult:
    """Return a document as a result; `text` renders it as text."""
    document = make_presentable(content)
    return CallToolResult(
        content=[TextContent(type="text", text=cut(text(document), MAX_TEXT))], structured_content=document
    )


def build_error_result(error: PlanwardenError) -> CallToolResult:
    """Return the error as a result with `isError`. If the message names all `problems`, the details leave them out."""
    code = "internal_error" if error.code in INTERNAL_CODES else error.code
    repeated = {"problems"} if is_in_message(error.details.get("problems"), error.message) else set[str]()
    details = {key: part for key, part in error.details.items() if key not in repeated}
    content: JsonValue = {"error": {"code": code, "message": error.message, "details": details}}
    result = build_result(content, lambda document: format_error(document["error"]))
    return result.model_copy(update={"is_error": True})


def make_presentable(document: JsonValue) -> Document:
    """Return the document in valid UTF-8 ("?" for lone surrogates); its long values are cut if it is too large."""
    whole = json.dumps(document, ensure_ascii=False)
    try:
        whole.encode()
    except UnicodeEncodeError:
        document = json.loads(whole.encode("utf-8", "replace"))
    if len(whole) > MAX_STRUCTURED:
        shorter = (partial(_shorten, limit=limit) for limit in VALUE_LENGTHS)
        cuts = (partial(_cut_lists, length=length) for length in LIST_LENGTHS)
        for shrink in (*shorter, *cuts, _cut_texts):
            if is_larger(document, MAX_STRUCTURED):
                document = shrink(document)
    return cast("Document", document)


def _cut_lists(value: JsonValue, length: int) -> JsonValue:
    """Return the value with the first entries of each list; an object also counts the entries of a list that is cut."""
    if isinstance(value, list):
        return [_cut_lists(child, length) for child in value[:length]]
    if not isinstance(value, dict):
        return value
    counts: dict[str, JsonValue] = {
        f"{key}Count": len(child) for key, child in value.items() if isinstance(child, list) and len(child) > length
    }
    return {**counts, **{key: _cut_lists(child, length) for key, child in value.items()}}


def _cut_texts(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_cut_texts(child) for child in value]
    if isinstance(value, dict):
        return {key: _cut_texts(child) for key, child in value.items()}
    return cut(value, VALUE_LENGTHS[0]) if isinstance(value, str) else value


def _shorten(value: JsonValue, limit: int) -> JsonValue:
    if isinstance(value, list):
        return [_shorten(child, limit) for child in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _shorten_value(child, limit) if key in _LONG else _shorten(child, limit) for key, child in value.items()
    }


def _shorten_value(value: JsonValue, limit: int) -> JsonValue:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= limit:
        return value
    if isinstance(value, list) and any(map(is_stand_in, value)):
        return [_shorten_value(child, limit) for child in value]
    if isinstance(value, dict) and (is_stand_in(value) or value.keys() == _CUT):
        return {**value, "preview": str(value["preview"])[:limit]}
    return {"truncated": True, "sizeBytes": len(text.encode()), "preview": text[:limit]}
