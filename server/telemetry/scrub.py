"""Rewrites spans of the MCP SDK before they are sent: names by the conventions, bounded, and no error messages.

The SDK names its spans of requests to downstream servers `MCP send METHOD TARGET`, puts any name that a client invents
into its spans of requests to this server, and records the text of errors, which can quote a server. The conventions
expect `METHOD TARGET` and the class of the error. The SDK offers no other place for this.
"""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status
from opentelemetry.util.types import AttributeValue

SCOPE = "mcp-python-sdk"
PREFIX = "MCP send "
MAX_CHARS = 128
"""Longest name, and longest text of an attribute."""
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
    """Return a span of the SDK without error messages and with its conventional name; any other span unchanged."""
    if span.instrumentation_scope is None or span.instrumentation_scope.name != SCOPE:
        return span
    attributes: dict[str, AttributeValue] = {
        name: value[:MAX_CHARS] if isinstance(value, str) else value for name, value in (span.attributes or {}).items()
    }
    for event in span.events:
        if event.attributes and TYPE in event.attributes:
            attributes.setdefault("error.type", str(event.attributes[TYPE]))
    return ReadableSpan(
        name=span.name.removeprefix(PREFIX)[:MAX_CHARS],
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
