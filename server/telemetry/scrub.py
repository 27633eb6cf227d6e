"""Spans of the MCP SDK's client as they are sent: named as the conventions name them, and without anybody's messages.

The SDK's spans of requests to downstream servers are called `MCP send METHOD TARGET` and carry the texts of errors, which
quote what a server said. They are rewritten where they leave, because the SDK has no other place for it yet.
Expected: `METHOD TARGET`, an error's class and nothing more. Until its dispatcher takes outbound middleware, which its
source announces.
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
    """Hands spans on to another exporter."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([scrubbed(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def scrubbed(span: ReadableSpan) -> ReadableSpan:
    """The span, without names and texts of the SDK's own; a span of anything else as it is."""
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
