"""Spans and counters of what an engine commits. Requests get their spans from the MCP SDK's own middleware.

This module is imported only when the operator or an embedding program configures telemetry; otherwise the engine
only makes one `is None` check per transaction and per call. The process that commits an event counts it, so each
event counts once. Attributes of counters hold no ids or tool names, so no client or server can choose their values.

OTLP export sends nothing that people or models wrote, except ids, names and, with `record_arguments`, arguments.
OpenTelemetry's SDK reads keys, time-outs, certificates, compression, samplers, limits and intervals from its variables:
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

import anyio
from opentelemetry import context, metrics, trace
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import INVALID_SPAN, NoOpTracerProvider, Status, TracerProvider
from opentelemetry.util.types import AttributeValue

from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import TRANSITIONS, ExecutionState, SuspensionState
from planwarden.agent.core.prompts import Prompt
from planwarden.server.telemetry.settings import ExportTarget, TelemetrySettings
from planwarden.server.telemetry.spans import Attributes, ExecutionSpans, describe_outcome, find_error, log_failures

SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
FLUSH_S = 3.0
"""The most seconds that closing waits for a collector that does not answer."""
TAKEOVER_S = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Bucket boundaries for takeovers: low ones for a killed process, high ones for one that is silent in a long call."""
WAKEUP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
"""Bucket boundaries for wake-ups: low ones if the database gave a hint, high ones for a process that got no hint."""
MCP_SCOPE, SENDING = "mcp-python-sdk", "MCP send "
"""The scope of the MCP SDK's spans, and the prefix of the names of its spans for sent requests."""
MAX_CHARS = 128
"""The most characters in the name of a span of the MCP SDK, and in each text attribute of such a span."""
EXCEPTION_TYPE = "exception.type"


class Telemetry:
    """Implements the engine's `Observer` port with spans and counters."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        model: str = "caller",
        record_arguments: bool = False,
        shutdown: Callable[[], None] | None = None,
    ) -> None:
        """`shutdown` sends what is left, which may take as long as the exporters' time-outs; it is None when the
        providers belong to the program."""
        number = version("planwarden")
        tracer = (tracer_provider or NoOpTracerProvider()).get_tracer("planwarden", number, SCHEMA)
        meter = (meter_provider or NoOpMeterProvider()).get_meter("planwarden", number, SCHEMA)
        self._spans = ExecutionSpans(tracer, model, record_arguments=record_arguments)
        self._shutdown = shutdown
        count = meter.create_counter
        self._executions = count("planwarden.executions", "{execution}", "Executions that ended, by status.")
        self._calls = count("planwarden.tool.calls", "{call}", "Tool calls that ended, by effect and error.")
        self._questions = count("planwarden.questions", "{question}", "Questions that were asked, and how they ended.")
        unproven = "Times that the log did not prove a step: a required tool had no successful call."
        self._unproven = count("planwarden.validation.failures", "{failure}", unproven)
        self._takeovers = meter.create_histogram(
            "planwarden.takeover.delay",
            unit="s",
            description="Time from the last sign of life of a process to the takeover of its execution by this one.",
            explicit_bucket_boundaries_advisory=TAKEOVER_S,
        )
        self._wakeups = meter.create_histogram(
            "planwarden.wakeup.delay",
            unit="s",
            description="Time from a decision that another process stored until this one continues the execution.",
            explicit_bucket_boundaries_advisory=WAKEUP_S,
        )

    def starting(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        with log_failures("the first span of execution %s could not be made", execution_id):
            return self._spans.start_execution(execution_id, thread_id)
        return None

    def committed(self, execution: ExecutionState, recorded: Sequence[ev.Recorded], *, owned: bool) -> None:
        for entry in recorded:
            # Count and trace separately, because a failing counter must not leave a span open.
            with log_failures("event %s of %s was not counted", entry.sequence, execution.execution_id):
                self._count(execution, entry.event, entry.at)
            if owned:
                with log_failures("event %s of %s was not traced", entry.sequence, execution.execution_id):
                    self._spans.record(execution, entry.event)

    def took_over(self, execution: ExecutionState, after_s: float, *, is_silent: bool) -> None:
        with log_failures("the takeover of execution %s was not counted", execution.execution_id):
            self._takeovers.record(after_s, {"planwarden.takeover.owner": "silent" if is_silent else "dead"})

    def woke(self, execution: ExecutionState, after_s: float) -> None:
        with log_failures("the wake-up of execution %s was not counted", execution.execution_id):
            self._wakeups.record(after_s)

    @contextmanager
    def performing(
        self, execution: ExecutionState, key: str, prompt: Prompt | None
    ) -> Generator[Callable[[Sequence[ev.Event]], None]]:
        """Make the span of the job current in the block, and end it; mark it as interrupted if the block raises."""
        span = INVALID_SPAN
        with log_failures("%s of execution %s was not observed", key, execution.execution_id):
            span = self._spans.start_job(execution, key, prompt)

        def report(events: Sequence[ev.Event]) -> None:
            with log_failures("%s of execution %s was not observed", key, execution.execution_id):
                describe_outcome(span, events)

        # If the block raises, `trace.use_span` would call methods of the span, and these may be broken.
        token, is_done = context.attach(trace.set_span_in_context(span)), False
        try:
            yield report
            is_done = True
        finally:
            context.detach(token)
            with log_failures("a span could not be ended"):
                if not is_done:
                    span.set_attribute("planwarden.interrupted", True)
                span.end()

    async def aclose(self) -> None:
        """End open spans and send what is left, within `FLUSH_S` seconds."""
        self._spans.close()
        if self._shutdown is None:
            return
        shut_down = log_failures("the last spans and metrics were not sent")(self._shutdown)
        # A daemon thread, so that a collector that hangs cannot keep the process alive.
        sending = threading.Thread(target=shut_down, name="planwarden-telemetry", daemon=True)
        sending.start()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(sending.join, FLUSH_S)

    def _count(self, execution: ExecutionState, event: ev.Event, at: float) -> None:
        match event:
            case ev.ToolReturned() | ev.ToolFailed() | ev.ToolOutcomeUnknown():
                error = find_error(event)
                about: Attributes = {"planwarden.tool.effect": execution.call(event.call_id).effect}
                self._calls.add(1, about if error is None else {**about, "error.type": error})
            case ev.ValidationFailed():
                self._unproven.add(
                    1, {"planwarden.validation.mode": event.mode, "planwarden.validation.enforced": event.enforced}
                )
            case ev.Suspended(question=question):
                self._count_question(execution.suspensions[question.suspension_id], "asked")
            case ev.SuspensionDecided() | ev.SuspensionTimedOut() | ev.SuspensionWithdrawn():
                suspension = execution.suspensions[event.suspension_id]
                decision = suspension.decision if suspension.status == "decided" else None
                verdict = suspension.status if decision is None else "approved" if decision.approved else "rejected"
                self._count_question(suspension, verdict)
            case _ if TRANSITIONS["running"].get(type(event), "running") not in ("running", "planned", "suspended"):
                self._executions.add(1, {"planwarden.execution.status": execution.status})
                for suspension in execution.suspensions.values():
                    if suspension.status == "withdrawn" and suspension.decided_at == at:
                        self._count_question(suspension, "withdrawn")
            case _:
                pass

    def _count_question(self, suspension: SuspensionState, outcome: str) -> None:
        about: Attributes = {
            "planwarden.suspension.kind": suspension.question.public_kind,
            "planwarden.suspension.addressee": suspension.question.addressee,
            "planwarden.suspension.outcome": outcome,
        }
        self._questions.add(1, about)


class ScrubbingExporter(SpanExporter):
    """Passes spans, as `scrub_span` returns them, to another exporter."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([scrub_span(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def scrub_span(span: ReadableSpan) -> ReadableSpan:
    """Return a span of the MCP SDK without error messages and with its conventional name; other spans unchanged."""
    if span.instrumentation_scope is None or span.instrumentation_scope.name != MCP_SCOPE:
        return span
    attributes: dict[str, AttributeValue] = {
        name: value[:MAX_CHARS] if isinstance(value, str) else value for name, value in (span.attributes or {}).items()
    }
    for event in span.events:
        if event.attributes and EXCEPTION_TYPE in event.attributes:
            attributes.setdefault("error.type", str(event.attributes[EXCEPTION_TYPE]))
    return ReadableSpan(
        name=span.name.removeprefix(SENDING)[:MAX_CHARS],
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


def build_exporting_telemetry(observation: TelemetrySettings, model: str, *, whole_process: bool) -> Telemetry:
    """Return telemetry that is sent, in the background, to the addresses in the settings.

    With `whole_process` the providers become those of the process, so that the MCP SDK's spans are sent too. If the
    process has providers already, as under `opentelemetry-instrument`, use those instead.

    Raises:
        ImportError: the extra, or the exporter for the protocol, is not installed.
    """
    build = partial(Telemetry, model=model, record_arguments=observation.record_arguments)
    process_traces = trace.get_tracer_provider()
    if not isinstance(process_traces, trace.ProxyTracerProvider):
        return build(process_traces, metrics.get_meter_provider())
    # OpenTelemetry's variables win over our own values.
    ours = Resource({"service.version": version("planwarden")})
    attributes = {"service.name": observation.service_name} if observation.service_name else {}
    resource = ours.merge(Resource.create(attributes))
    traces = meters = None
    if observation.traces is not None:
        traces = sdk_trace.TracerProvider(resource=resource, shutdown_on_exit=False)
        traces.add_span_processor(BatchSpanProcessor(ScrubbingExporter(_build_exporter(observation.traces, "trace"))))
        if whole_process:
            trace.set_tracer_provider(traces)
    if observation.metrics is not None:
        reader = PeriodicExportingMetricReader(_build_exporter(observation.metrics, "metric"))
        meters = sdk_metrics.MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        if whole_process:
            metrics.set_meter_provider(meters)

    def shut_down() -> None:
        for provider in filter(None, (traces, meters)):
            provider.shutdown()

    return build(traces, meters, shutdown=shut_down)


def _build_exporter(target: ExportTarget, kind: Literal["trace", "metric"]) -> Any:
    wire = "grpc" if target.protocol == "grpc" else "http"
    module = import_module(f"opentelemetry.exporter.otlp.proto.{wire}.{kind}_exporter")
    return (module.OTLPSpanExporter if kind == "trace" else module.OTLPMetricExporter)(endpoint=target.url)
