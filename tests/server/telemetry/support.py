"""What tests of observation share: providers that keep what they are given, and short forms of what they kept."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import JsonValue

import planwarden
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.agent.ports.model import CallerModel
from planwarden.agent.ports.store import Store
from planwarden.server.settings.configuration import Settings
from planwarden.storage.sqlite.store import MemoryStore
from tests.support.network import ReceivedRequest


@dataclass
class Watching:
    """One process's providers."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    traces: TracerProvider = field(default_factory=lambda: TracerProvider(shutdown_on_exit=False))

    def __post_init__(self) -> None:
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)

    @property
    def spans(self) -> list[ReadableSpan]:
        """In the order in which they ended."""
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [found] = self.named(name)
        return found

    def points(self, name: str) -> list[tuple[dict[str, object], float]]:
        """Attributes and value (the sum, of histograms) of each series of a metric."""
        return [
            (dict(point.attributes or {}), point.sum if isinstance(point, HistogramDataPoint) else point.value)
            for point in self._list_points(name)
        ]

    def values(self, name: str) -> dict[str, float]:
        """The value of each series of a metric, by its attributes' values."""
        return {" ".join(map(str, about.values())): value for about, value in self.points(name)}

    def counts(self, name: str) -> list[int]:
        """How many values each series of a histogram has."""
        return [point.count for point in self._list_points(name) if isinstance(point, HistogramDataPoint)]

    def _list_points(self, name: str) -> list[HistogramDataPoint | NumberDataPoint]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in (metric.data.data_points if metric.name == name else ())
            if isinstance(point, HistogramDataPoint | NumberDataPoint)
        ]

    @asynccontextmanager
    async def warden(
        self,
        *,
        tools: Sequence[object] = (),
        script: Sequence[JsonValue] | None = None,
        store: Store | None = None,
        settings: Settings | None = None,
    ) -> AsyncGenerator[planwarden.Warden]:
        made = planwarden.Warden(
            settings=settings or Settings(home=Path("/nonexistent")),
            model=CallerModel() if script is None else ScriptedModel({"replies": list(script)}),
            tools=tools,
            store=store or MemoryStore(),
            tracer_provider=self.traces,
            meter_provider=self.meters,
        )
        async with made:
            yield made


def list_spans(request: ExportTraceServiceRequest) -> list[Span]:
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def spans_of(received: Iterable[ReceivedRequest]) -> list[Span]:
    """What a collector received over HTTP, in order."""
    bodies = [request.body for request in received if request.path == "/v1/traces"]
    return [span for body in bodies for span in list_spans(ExportTraceServiceRequest.FromString(body))]


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id
