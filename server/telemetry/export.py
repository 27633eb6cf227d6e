"""OTLP export. Only this module and `planwarden.server.telemetry.scrub` import OpenTelemetry's SDK.

The SDK reads keys, time-outs, certificates, compression, samplers, limits and intervals from its own variables: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

from importlib.metadata import version

import msgspec
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from planwarden.server.telemetry.scrub import ScrubbingExporter
from planwarden.server.telemetry.settings import ExportTarget, TelemetrySettings


class Providers(msgspec.Struct, frozen=True):
    """Sends spans and metrics in the background."""

    traces: TracerProvider | None
    metrics: MeterProvider | None

    def make_global(self) -> None:
        """Makes these the providers of the process, so that other code sends its spans and metrics through them."""
        if self.traces is not None:
            trace.set_tracer_provider(self.traces)
        if self.metrics is not None:
            metrics.set_meter_provider(self.metrics)

    def shutdown(self) -> None:
        """Sends what is left. May take as long as the exporters' time-outs."""
        if self.traces is not None:
            self.traces.shutdown()
        if self.metrics is not None:
            self.metrics.shutdown()


def build_providers(observation: TelemetrySettings) -> Providers:
    """Returns providers for the signals that have an address.

    Raises:
        ImportError: the exporter for the protocol is not installed.
    """
    # OpenTelemetry's variables win over our own values.
    ours = Resource({"service.version": version("planwarden")})
    named = {"service.name": observation.service_name} if observation.service_name else {}
    resource = ours.merge(Resource.create(named))
    traces = meters = None
    if observation.traces is not None:
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces.add_span_processor(BatchSpanProcessor(ScrubbingExporter(_build_span_exporter(observation.traces))))
    if observation.metrics is not None:
        reader = PeriodicExportingMetricReader(_build_metric_exporter(observation.metrics))
        meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    return Providers(traces, meters)


def _build_span_exporter(target: ExportTarget) -> SpanExporter:
    if target.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc(endpoint=target.url)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=target.url)


def _build_metric_exporter(target: ExportTarget) -> MetricExporter:
    if target.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as OverGrpc

        return OverGrpc(endpoint=target.url)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(endpoint=target.url)
