"""Turns views into camelCase JSON."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, cast

import msgspec
from pydantic.alias_generators import to_camel

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
    return cast("dict[str, JsonValue]", _encode(view, is_short=True, lists=lists))


@cache
def _list_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, bool], ...]:
    names = (name for name in kind.__struct_fields__ if name not in HIDDEN_FIELDS)
    return tuple((name, to_camel(name), may_be_left_out(kind, name)) for name in names)


def may_be_left_out(kind: type[msgspec.Struct], name: str) -> bool:
    """Return whether `to_json` leaves the field out when it is empty."""
    return name in OPTIONAL_FIELDS or (kind is ToolCall and name == "error")


def _encode(value: Any, *, is_short: bool = False, lists: bool = False) -> Any:
    kind = type(cast("object", value))
    if kind is tuple:
        return [_encode(item, is_short=is_short) for item in value]
    if kind is datetime:
        return format_instant(value, "milliseconds")
    if not issubclass(kind, msgspec.Struct):
        return value
    document: dict[str, Any] = {}
    for name, key, is_optional in _list_fields(kind):
        part = getattr(value, name)
        is_left_out = is_optional or (is_short and not (lists and part == ()))
        if (is_left_out and (part is None or part == ())) or (name == "quorum" and part == 1):
            continue
        encoded = _encode(part, is_short=is_short)
        if encoded or not (is_short and isinstance(part, msgspec.Struct)):
            document[key] = encoded
    extra = document.pop("extra", None)
    if isinstance(extra, Mapping):
        document.update(cast("Mapping[str, Any]", extra))
    return document
