"""Spans and metrics of what an engine commits and of what goes over MCP, and where they go.

This module is imported only when observation is configured, by the operator or by an embedding program; without it the
engine asks one `is None` per transaction and per call. Executions begin below the span of the request that made them,
and a tool's span is current while the tool runs, so both join up without being told; the trace context in `_meta` is
that of SEP-414, https://modelcontextprotocol.io/seps/414-request-meta.
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
from planwarden.server.telemetry.attributes import SCHEMA, current, model_attributes, unharmed
from planwarden.server.telemetry.exchanges import exchanging
from planwarden.server.telemetry.metrics import Metrics
from planwarden.server.telemetry.questions import OpenQuestions
from planwarden.server.telemetry.settings import TelemetrySettings
from planwarden.server.telemetry.spans import ExecutionSpans
from planwarden.tools.downstream.request_observer import ObservedRequest, OnRequestEnd

if TYPE_CHECKING:
    # Importing the SDK of MCP takes up to a second, which a program that serves nothing need not spend.
    from planwarden.server.telemetry.requests import RequestSpans

logger = logging.getLogger(__name__)

FLUSH_S = 3.0
"""How long the end of the process waits for a collector that does not answer."""


class Telemetry:
    """An `Observer` that makes spans and metrics."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        model: str = "caller",
        record_arguments: bool = False,
        shutdown: Callable[[], None] | None = None,
    ) -> None:
        """`shutdown` sends what is left; None when the providers are somebody else's."""
        self.tracer_provider = tracer_provider or NoOpTracerProvider()
        self.meter_provider = meter_provider or NoOpMeterProvider()
        number, about = version("planwarden"), model_attributes(model)
        self._tracer = self.tracer_provider.get_tracer("planwarden", number, SCHEMA)
        self._meter = self.meter_provider.get_meter("planwarden", number, SCHEMA)
        self._spans = ExecutionSpans(self._tracer, about, record_arguments=record_arguments)
        self._metrics = Metrics(self._meter, about)
        self._shutdown = shutdown

    def starting(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        with unharmed("the first span of execution %s could not be made", execution_id):
            return self._spans.starting(execution_id, thread_id)
        return None

    def committed(self, execution: ExecutionState, recorded: Sequence[ev.Recorded], *, owned: bool) -> None:
        for entry in recorded:
            # Each on its own: a metric that fails must not leave a span open. Not `unharmed`, this is the busiest place.
            try:
                self._metrics.count(execution, entry)
            except Exception:
                logger.exception("event %s of execution %s was not counted", entry.sequence, execution.execution_id)
            try:
                self._spans.record(execution, entry, owned=owned)
            except Exception:
                logger.exception("event %s of execution %s was not traced", entry.sequence, execution.execution_id)

    @contextmanager
    def performing(self, execution: ExecutionState, key: str, prompt: Prompt | None, at: float) -> Generator[None]:
        span = INVALID_SPAN
        with unharmed("%s of execution %s was not observed", key, execution.execution_id):
            span = self._spans.job(execution, key, prompt, at)
        timed = nullcontext() if prompt is None else self._metrics.prompting(execution.execution_id, key)
        with timed, current(span):
            yield

    def requests(self, names: Mapping[str, Container[str]]) -> "RequestSpans":
        """Middleware for an MCP server; `names` are those of its tools and prompts, by the method that uses them."""
        from planwarden.server.telemetry.requests import RequestSpans

        return RequestSpans(self._tracer, self._metrics.served, names)

    def exchanging(self, exchange: ObservedRequest) -> AbstractContextManager[OnRequestEnd]:
        """Entered while a downstream server is asked."""
        return exchanging(self._metrics.sent, exchange)

    def counting(self, store: Store) -> AbstractAsyncContextManager[object]:
        """Tell how many questions are open in the store while the block runs."""
        if isinstance(self.meter_provider, NoOpMeterProvider):
            return nullcontext()
        with unharmed("open questions cannot be counted"):
            return OpenQuestions(self._meter, store)
        return nullcontext()

    async def aclose(self) -> None:
        """End open spans and send what is left, for at most `FLUSH_S` when the providers are our own."""
        self._spans.close()
        if self._shutdown is None:
            return
        # A thread of its own, and a daemon: a collector that hangs must not keep the process from ending.
        sending = threading.Thread(target=self._send_rest, name="planwarden-telemetry", daemon=True)
        sending.start()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(sending.join, FLUSH_S)

    def _send_rest(self) -> None:
        with unharmed("what was observed last was not sent"):
            if self._shutdown is not None:
                self._shutdown()


def exported(observation: TelemetrySettings, model: str, *, whole_process: bool) -> Telemetry:
    """Telemetry that is sent where the settings say.

    With `whole_process` the providers become the process's own, so that the MCP SDK's spans go the same way. Providers
    that the process has already, as under `opentelemetry-instrument`, are used and not replaced.

    Raises:
        ImportError: the extra is not installed.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        from opentelemetry import metrics

        traces, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
        return Telemetry(traces, meters, model=model, record_arguments=observation.record_arguments)
    from planwarden.server.telemetry.export import providers

    made = providers(observation)
    if whole_process:
        made.make_global()
    return Telemetry(
        made.traces,
        made.metrics,
        model=model,
        record_arguments=observation.record_arguments,
        shutdown=made.shutdown,
    )
