"""Reads the trace context in `_meta` of requests (SEP-414, https://modelcontextprotocol.io/seps/414-request-meta).

Clients are not trusted. The SDK's own reader refuses requests whose `tracestate` is not text, and logs baggage that is
too long. Here malformed parts count as absent, as https://www.w3.org/TR/trace-context/#processing-model demands.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

MAX_TRACEPARENT = 256
"""Characters; version 00 has 55, later ones may have more."""
MAX_TRACESTATE = 512
"""Characters, https://www.w3.org/TR/trace-context/#tracestate-limits."""
MAX_BAGGAGE = 8_192
MAX_MEMBERS = 180
"""https://www.w3.org/TR/baggage/#limits says that at least this much must be propagated."""

_PATTERNS = {
    "traceparent": (MAX_TRACEPARENT, re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]*)?")),
    "tracestate": (MAX_TRACESTATE, re.compile(r"[ -~]*")),
    "baggage": (MAX_BAGGAGE, re.compile(r"[ -~]*")),
}
_MEMBER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+ *= *[!#-+\--:<-\[\]-~]*( *;[ !#-+\--:;<-\[\]-~]*)?")


def read_trace_context(meta: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the well-formed ones of `traceparent`, `tracestate` and `baggage`."""
    found: dict[str, str] = {}
    for name, (limit, pattern) in _PATTERNS.items():
        value = (meta or {}).get(name)
        if isinstance(value, str) and len(value) <= limit and pattern.fullmatch(value):
            found[name] = value
    members = found.get("baggage", "").split(",")
    if len(members) > MAX_MEMBERS or not all(_MEMBER.fullmatch(member.strip()) for member in members):
        found.pop("baggage", None)
    return found


async def drop_malformed_trace_context(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware that removes malformed trace context before any other code reads it."""
    meta: Mapping[str, Any] = ctx.meta or {}
    if not any(name in meta for name in _PATTERNS):
        return await call_next(ctx)
    others: dict[str, Any] = {name: value for name, value in meta.items() if name not in _PATTERNS}
    cleaned: Any = {**others, **read_trace_context(meta)}
    return await call_next(replace(ctx, meta=cleaned))
