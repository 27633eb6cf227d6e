"""Reads the trace context in `_meta` of requests (SEP-414, https://modelcontextprotocol.io/seps/414-request-meta).

Clients are not trusted, and OpenTelemetry's readers log whole headers that they refuse. Here malformed parts count as
absent, as https://www.w3.org/TR/trace-context/#processing-model demands. Baggage is not read.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

_PATTERNS = {
    "traceparent": re.compile(r"(?=.{55,256}\Z)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]*)?"),
    "tracestate": re.compile(r"[ -~]{0,512}"),
}
"""Version 00 of `traceparent` has 55 characters, later ones may have more. `tracestate`:
https://www.w3.org/TR/trace-context/#tracestate-limits."""
_UNREAD = "baggage"


def read_trace_context(meta: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the well-formed ones of `traceparent` and `tracestate`."""
    values = {name: (meta or {}).get(name) for name in _PATTERNS}
    return {
        name: value for name, value in values.items() if isinstance(value, str) and _PATTERNS[name].fullmatch(value)
    }


async def drop_malformed_trace_context(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware that removes malformed trace context before any other code reads it."""
    meta: Mapping[str, Any] = ctx.meta or {}
    if not any(name in meta for name in (*_PATTERNS, _UNREAD)):
        return await call_next(ctx)
    others: dict[str, Any] = {name: value for name, value in meta.items() if name not in (*_PATTERNS, _UNREAD)}
    cleaned: Any = {**others, **read_trace_context(meta)}
    return await call_next(replace(ctx, meta=cleaned))
