"""OTLP over HTTP with OpenTelemetry's SDK: the only module that imports it."""

from dataclasses import dataclass
from importlib.metadata import version

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from planwarden.server.telemetry.settings import Observation


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


def providers(observation: Observation) -> Providers:
    """Providers for the signals that have an address; keys, time-outs and samplers come from OpenTelemetry's variables."""
    resource = Resource.create(
        {"service.version": version("planwarden")}
        | ({"service.name": observation.service_name} if observation.service_name else {})
    )
    traces = meters = None
    if observation.traces_url is not None:
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=observation.traces_url)))
    if observation.metrics_url is not None:
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=observation.metrics_url))
        meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    return Providers(traces, meters)
