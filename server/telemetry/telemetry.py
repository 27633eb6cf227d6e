"""Spans and metrics of what an engine commits and of MCP requests.

This module is imported only when the operator or an embedding program configures telemetry; without it the engine
checks one `is None` per transaction and per call. An execution's first span starts below the span of its request, and a
tool's span is current while the tool runs. The trace context in `_meta` follows SEP-414,
https://modelcontextprotocol.io/seps/414-request-meta.
"""

import logging
import threading
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING

import anyio
from opentelemetry import trace
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import INVALID_SPAN, NoOpTracerProvider, TracerProvider

from planwarden.agent.core import events as ev
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import Store
from planwarden.server.telemetry.attributes import SCHEMA, build_model_attributes, log_failures, use_span
from planwarden.server.telemetry.exchanges import observe_exchange
from planwarden.server.telemetry.execution_spans import ExecutionSpans
from planwarden.server.telemetry.metrics import Metrics
from planwarden.server.telemetry.open_questions import OpenQuestions
from planwarden.server.telemetry.settings import TelemetrySettings
from planwarden.tools.downstream.request_observer import ObservedRequest, OnRequestEnd

if TYPE_CHECKING:
    # Importing the MCP SDK takes up to a second, which a program that does not serve should not spend.
    from planwarden.server.telemetry.request_spans import RequestSpans

logger = logging.getLogger(__name__)

FLUSH_S = 3.0
"""Seconds that closing waits for a collector that does not answer."""


class Telemetry:
    """Implements the engine's `Observer` port with spans and metrics."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        model: str = "caller",
        record_arguments: bool = False,
        shutdown: Callable[[], None] | None = None,
    ) -> None:
        """`shutdown` sends what is left; None when the providers belong to the program."""
        self.tracer_provider = tracer_provider or NoOpTracerProvider()
        self.meter_provider = meter_provider or NoOpMeterProvider()
        number, about = version("planwarden"), build_model_attributes(model)
        self._tracer = self.tracer_provider.get_tracer("planwarden", number, SCHEMA)
        self._meter = self.meter_provider.get_meter("planwarden", number, SCHEMA)
        self._spans = ExecutionSpans(self._tracer, about, record_arguments=record_arguments)
        self._metrics = Metrics(self._meter, about)
        self._shutdown = shutdown

    def starting(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        with log_failures("the first span of execution %s could not be made", execution_id):
            return self._spans.start_execution(execution_id, thread_id)
        return None

    def committed(self, execution: ExecutionState, recorded: Sequence[ev.Recorded], *, owned: bool) -> None:
        for entry in recorded:
            # One `try` each: a failing metric must not leave a span open. `log_failures` would be too slow here.
            try:
                self._metrics.count(execution, entry)
            except Exception:
                logger.exception("event %s of execution %s was not counted", entry.sequence, execution.execution_id)
            try:
                self._spans.record(execution, entry, owned=owned)
            except Exception:
                logger.exception("event %s of execution %s was not traced", entry.sequence, execution.execution_id)

    def took_over(self, execution: ExecutionState, after_s: float, *, is_silent: bool) -> None:
        with log_failures("the takeover of execution %s was not counted", execution.execution_id):
            self._metrics.count_takeover(after_s, is_silent=is_silent)

    def woke(self, execution: ExecutionState, after_s: float) -> None:
        with log_failures("the wake-up of execution %s was not counted", execution.execution_id):
            self._metrics.count_wakeup(after_s)

    @contextmanager
    def performing(self, execution: ExecutionState, key: str, prompt: Prompt | None, at: float) -> Generator[None]:
        span = INVALID_SPAN
        with log_failures("%s of execution %s was not observed", key, execution.execution_id):
            span = self._spans.start_job(execution, key, prompt, at)
        timed = nullcontext() if prompt is None else self._metrics.time_prompt(execution.execution_id, key)
        with timed, use_span(span):
            yield

    def build_request_spans(self, names: Mapping[str, Container[str]]) -> "RequestSpans":
        """Returns middleware for an MCP server; `names` are its tools and prompts by the method that uses them."""
        from planwarden.server.telemetry.request_spans import RequestSpans

        return RequestSpans(self._tracer, self._metrics.server_durations, names)

    def observe_exchange(self, exchange: ObservedRequest) -> AbstractContextManager[OnRequestEnd]:
        """Observes a request to a downstream server while the block runs."""
        return observe_exchange(self._metrics.client_durations, exchange)

    def count_open_questions(self, store: Store) -> AbstractAsyncContextManager[object]:
        """Reports the open questions of the store while the block runs."""
        if isinstance(self.meter_provider, NoOpMeterProvider):
            return nullcontext()
        with log_failures("open questions cannot be counted"):
            return OpenQuestions(self._meter, store)
        return nullcontext()

    async def aclose(self) -> None:
        """Ends open spans and sends what is left, within `FLUSH_S` seconds."""
        self._spans.close()
        if self._shutdown is None:
            return
        # A daemon thread, so that a collector that hangs cannot keep the process alive.
        sending = threading.Thread(target=self._send_rest, name="planwarden-telemetry", daemon=True)
        sending.start()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(sending.join, FLUSH_S)

    def _send_rest(self) -> None:
        with log_failures("the last spans and metrics were not sent"):
            if self._shutdown is not None:
                self._shutdown()


def build_exporting_telemetry(observation: TelemetrySettings, model: str, *, whole_process: bool) -> Telemetry:
    """Returns telemetry that is sent where the settings say.

    With `whole_process` the providers become those of the process, so that the MCP SDK's spans are sent too. If the
    process has providers already, as under `opentelemetry-instrument`, it uses them instead.

    Raises:
        ImportError: the extra is not installed.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        from opentelemetry import metrics

        traces, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
        return Telemetry(traces, meters, model=model, record_arguments=observation.record_arguments)
    from planwarden.server.telemetry.export import build_providers

    made = build_providers(observation)
    if whole_process:
        made.make_global()
    return Telemetry(
        made.traces,
        made.metrics,
        model=model,
        record_arguments=observation.record_arguments,
        shutdown=made.shutdown,
    )
