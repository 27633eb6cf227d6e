"""OTLP export, without what a person or a model wrote. Only this module imports OpenTelemetry's SDK.

The SDK reads keys, time-outs, certificates, compression, samplers, limits and intervals from its own variables: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status
from opentelemetry.util.types import AttributeValue

from planwarden.server.telemetry.settings import ExportTarget, TelemetrySettings

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


def build_providers(
    observation: TelemetrySettings, *, whole_process: bool
) -> tuple[TracerProvider | None, MeterProvider | None]:
    """Return providers for the signals that have an address, which send in the background. With `whole_process` other
    code sends its spans and metrics through them too.

    Raises:
        ImportError: the exporter for the protocol is not installed.
    """
    # OpenTelemetry's variables win over our own values.
    ours = Resource({"service.version": version("planwarden")})
    attributes = {"service.name": observation.service_name} if observation.service_name else {}
    resource = ours.merge(Resource.create(attributes))
    traces = meters = None
    if observation.traces is not None:
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces.add_span_processor(BatchSpanProcessor(ScrubbingExporter(_build_exporter(observation.traces, "trace"))))
        if whole_process:
            trace.set_tracer_provider(traces)
    if observation.metrics is not None:
        reader = PeriodicExportingMetricReader(_build_exporter(observation.metrics, "metric"))
        meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        if whole_process:
            metrics.set_meter_provider(meters)
    return traces, meters


def _build_exporter(target: ExportTarget, kind: Literal["trace", "metric"]) -> Any:
    wire = "grpc" if target.protocol == "grpc" else "http"
    module = import_module(f"opentelemetry.exporter.otlp.proto.{wire}.{kind}_exporter")
    return (module.OTLPSpanExporter if kind == "trace" else module.OTLPMetricExporter)(endpoint=target.url)
