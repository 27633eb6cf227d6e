"""OTLP with OpenTelemetry's SDK: with `planwarden.server.telemetry.scrub` the only module that imports it.

Keys, time-outs, certificates, compression, samplers, limits and intervals come from OpenTelemetry's own variables, which
the SDK reads: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

from dataclasses import dataclass
from importlib.metadata import version

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from planwarden.server.telemetry.scrub import ScrubbingExporter
from planwarden.server.telemetry.settings import ExportTarget, TelemetrySettings


@dataclass(frozen=True, slots=True)
class Providers:
    """What sends spans and metrics in the background."""

    traces: TracerProvider | None
    metrics: MeterProvider | None

    def make_global(self) -> None:
        """Everything in this process that speaks OpenTelemetry uses them from now on."""
        if self.traces is not None:
            trace.set_tracer_provider(self.traces)
        if self.metrics is not None:
            metrics.set_meter_provider(self.metrics)

    def shutdown(self) -> None:
        """Send what is left. May take as long as the exporters' time-outs."""
        if self.traces is not None:
            self.traces.shutdown()
        if self.metrics is not None:
            self.metrics.shutdown()


def providers(observation: TelemetrySettings) -> Providers:
    """Providers for the signals that have an address.

    Raises:
        ImportError: the exporter for the protocol is not installed.
    """
    # What the variables say about the resource wins over what is known here.
    ours = Resource({"service.version": version("planwarden")})
    named = {"service.name": observation.service_name} if observation.service_name else {}
    resource = ours.merge(Resource.create(named))
    traces = meters = None
    if observation.traces is not None:
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces.add_span_processor(BatchSpanProcessor(ScrubbingExporter(_span_exporter(observation.traces))))
    if observation.metrics is not None:
        reader = PeriodicExportingMetricReader(_metric_exporter(observation.metrics))
        meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    return Providers(traces, meters)


def _span_exporter(target: ExportTarget) -> SpanExporter:
    if target.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc(endpoint=target.url)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=target.url)


def _metric_exporter(target: ExportTarget) -> MetricExporter:
    if target.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as OverGrpc

        return OverGrpc(endpoint=target.url)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(endpoint=target.url)
