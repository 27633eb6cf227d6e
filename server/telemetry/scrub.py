"""Rewrites spans of the MCP SDK's client before they are sent: names by the conventions, and no error messages.

The SDK names its spans of requests to downstream servers `MCP send METHOD TARGET` and records the text of errors, which
can quote a server. The conventions expect `METHOD TARGET` and the class of the error. The SDK offers no other place for
this until its dispatcher takes outbound middleware, which its source announces.
"""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status

from planwarden.server.telemetry.attributes import Attributes

SCOPE = "mcp-python-sdk"
PREFIX = "MCP send "
MAX_NAME = 200
TYPE = "exception.type"


class ScrubbingExporter(SpanExporter):
    """Passes rewritten spans to another exporter."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([scrub_span(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def scrub_span(span: ReadableSpan) -> ReadableSpan:
    """Returns a span of the SDK without error messages and with its conventional name; any other span unchanged."""
    if span.instrumentation_scope is None or span.instrumentation_scope.name != SCOPE:
        return span
    attributes: Attributes = dict(span.attributes or {})
    for event in span.events:
        if event.attributes and TYPE in event.attributes:
            attributes.setdefault("error.type", str(event.attributes[TYPE]))
    name = span.name.removeprefix(PREFIX)[:MAX_NAME]
    if attributes.get("mcp.method.name") == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
        attributes.setdefault("gen_ai.tool.name", name.removeprefix("tools/call ").strip())
    return ReadableSpan(
        name=name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=attributes,
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
