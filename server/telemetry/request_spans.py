"""A span and a duration for each message that the server receives, by OpenTelemetry's MCP conventions.

It replaces the SDK's own middleware, which puts any tool name that a client sends into the span's name, records
messages of exceptions, and knows neither session nor transport. Sources: see `planwarden.server.telemetry.attributes`;
the keys of `_meta`: https://modelcontextprotocol.io/seps/414-request-meta.
"""

import time
from collections.abc import Container, Mapping
from typing import Any

import msgspec
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS
from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, Status, StatusCode, Tracer
from pydantic import ValidationError

from planwarden.server.telemetry.attributes import Attributes, log_failures, use_span
from planwarden.server.telemetry.trace_context import read_trace_context

MAX_CHARS = 128
"""Longest name or id from a client in a span."""
OTHER = "_OTHER"
METHODS = frozenset(
    {
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "notifications/cancelled",
        "notifications/initialized",
        "notifications/progress",
        "notifications/roots/list_changed",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
        "tasks/cancel",
        "tasks/get",
        "tasks/update",
        "tools/call",
        "tools/list",
    }
)
"""Methods that clients may call; every other method is `_OTHER`."""
_TARGET_ATTRIBUTES = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}


class RequestSpans(msgspec.Struct, frozen=True):
    """The outermost middleware of an MCP server."""

    tracer: Tracer
    durations: Histogram
    names: Mapping[str, Container[str]]
    """Known tools and prompts by method; no other name appears in a span's name or in a metric."""

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        about, name = self._build_attributes(ctx)
        above, span = context.get_current(), INVALID_SPAN
        with log_failures("a request was not observed"):
            above = propagate.extract(read_trace_context(ctx.meta))
            span = self._start_span(name, about, ctx, above)
        token = context.attach(above)
        began, error = time.perf_counter(), None
        try:
            with use_span(span):
                result = await call_next(ctx)
            error = "tool_error" if _is_failed_call(result) else None
        except BaseException as raised:
            error = _classify_error(raised)
            raise
        finally:
            context.detach(token)
            with log_failures("a request was not observed"):
                self._end_span(span, about, error, time.perf_counter() - began)
        return result

    def _build_attributes(self, ctx: ServerRequestContext[Any, Any]) -> tuple[Attributes, str]:
        """Returns the attributes that metrics may have too, and the span's name."""
        method = ctx.method if ctx.method in METHODS else OTHER
        about: Attributes = {
            "mcp.method.name": method,
            "network.transport": "pipe" if ctx.request is None else "tcp",
        }
        if ctx.protocol_version in KNOWN_PROTOCOL_VERSIONS:
            about["mcp.protocol.version"] = ctx.protocol_version
        if method == "tools/call":
            about["gen_ai.operation.name"] = "execute_tool"
        target = _find_target(ctx)
        if target is None or target not in self.names.get(method, ()):
            return about, method
        about[_TARGET_ATTRIBUTES[method]] = target
        return about, f"{method} {target}"

    def _start_span(self, name: str, about: Attributes, ctx: ServerRequestContext[Any, Any], above: Context) -> Span:
        own = dict(about)
        target, kind = _find_target(ctx), _TARGET_ATTRIBUTES.get(ctx.method)
        if target is not None and kind is not None:
            own[kind] = target[:MAX_CHARS]
        if ctx.request_id is not None:
            own["jsonrpc.request.id"] = str(ctx.request_id)[:MAX_CHARS]
        headers: Mapping[str, str] = {} if ctx.request is None else ctx.request.headers
        session_id = headers.get("mcp-session-id")
        if session_id is not None:
            own["mcp.session.id"] = session_id[:MAX_CHARS]
        ambient = trace.get_current_span().get_span_context()
        is_elsewhere = trace.get_current_span(above).get_span_context() != ambient
        # A span of the transport, such as an instrumented HTTP server's, becomes a link when it is not the parent.
        links = [Link(ambient)] if ambient.is_valid and is_elsewhere else []
        return self.tracer.start_span(name, above, SpanKind.SERVER, own, links)

    def _end_span(self, span: Span, about: Attributes, error: str | None, took_s: float) -> None:
        failed: Attributes = {}
        if error is not None:
            failed["error.type"] = error
            if error.lstrip("-").isdecimal():
                failed["rpc.response.status_code"] = error
            span.set_attributes(failed)
            span.set_status(Status(StatusCode.ERROR))
        span.end()
        self.durations.record(took_s, {**about, **failed})


def _find_target(ctx: ServerRequestContext[Any, Any]) -> str | None:
    name = ctx.params.get("name") if ctx.params and ctx.method in _TARGET_ATTRIBUTES else None
    return name if isinstance(name, str) else None


def _is_failed_call(result: HandlerResult) -> bool:
    match result:
        case CallToolResult(is_error=True) | {"isError": True}:
            return True
        case _:
            return False


def _classify_error(raised: BaseException) -> str:
    """Returns a code of the protocol, or the class of the exception; never a message."""
    match raised:
        case MCPError():
            return str(raised.error.code)
        case ValidationError():
            return str(INVALID_PARAMS)
        case _:
            return type(raised).__qualname__
