"""Turns views into camelCase JSON."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, cast

import msgspec

from planwarden.agent.common.struct import JsonValue
from planwarden.server.views.instants import format_instant
from planwarden.server.views.tools import ToolCall

OPTIONAL_FIELDS = frozenset(
    {
        "observations",
        "awaiting",
        "status",
        "unavailable",
        "warnings",
        "confirms",
        "quorum",
        "endorsements",
        "asker",
        "found",
        "beside",
        "calls",
        "call_count",
        "items",
        "item_results",
        "next",
        "saved_plan",
        "retry_of",
        "done_before",
        "is_unknown",
        "is_rehearsal",
        "taken_from",
        "rehearsal",
        "rule",
        "for_all_rows",
        "by_rule",
        "covered_by",
        "grant_id",
        "once",
        "skipped_because",
        "skipped_reason",
        "forecast",
        "unseen",
        "graph",
        "changed",
    }
)
"""Fields that the JSON leaves out when they are empty."""
HIDDEN_FIELDS = frozenset({"card_source"})
"""Fields that only pages and other surfaces for people show."""


def to_json(view: object) -> dict[str, JsonValue]:
    """Return a view as camelCase JSON, without the optional fields that are empty."""
    return cast("dict[str, JsonValue]", _encode(view))


def to_short_json(view: object, *, lists: bool = False) -> dict[str, JsonValue]:
    """Return a view as camelCase JSON without fields that are null or empty lists; with `lists` it keeps its own."""
    return cast("dict[str, JsonValue]", _encode_short(view, lists=lists))


@cache
def _list_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, bool], ...]:
    names = (name for name in kind.__struct_fields__ if name not in HIDDEN_FIELDS)
    return tuple((name, _to_camel(name), name in OPTIONAL_FIELDS) for name in names)


def _to_camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _encode(value: Any) -> Any:
    kind = type(cast("object", value))
    if kind is tuple:
        return [_encode(item) for item in value]
    if kind is datetime:
        return format_instant(value, "milliseconds")
    if not issubclass(kind, msgspec.Struct):
        return value
    document: dict[str, Any] = {}
    for name, key, is_optional in _list_fields(kind):
        part = getattr(value, name)
        if is_optional and (part is None or part == () or (name == "quorum" and part == 1)):
            continue
        document[key] = _encode(part)
    extra = document.pop("extra", None)
    if isinstance(extra, Mapping):
        document.update(cast("Mapping[str, Any]", extra))
    if kind is ToolCall and document.get("error") is None:
        document.pop("error", None)
    return document


def _encode_short(value: Any, *, lists: bool = False) -> Any:
    kind = type(cast("object", value))
    if kind is tuple:
        return [_encode_short(item) for item in value]
    if not issubclass(kind, msgspec.Struct):
        return _encode(value)
    document: dict[str, Any] = {}
    for name, key, is_optional in _list_fields(kind):
        part = getattr(value, name)
        if part is None or (part == () and (is_optional or not lists)) or (name == "quorum" and part == 1):
            continue
        encoded = _encode_short(part)
        if encoded or not isinstance(part, msgspec.Struct):
            document[key] = encoded
    extra = document.pop("extra", None)
    if isinstance(extra, Mapping):
        document.update(cast("Mapping[str, Any]", extra))
    return document
