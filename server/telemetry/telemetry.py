"""Spans and metrics of what an engine commits, and where they go.

This module is imported only when observation is configured, by the operator or by an embedding program; without it the
engine asks one `is None` per transaction and per call. The MCP SDK makes the spans of the protocol itself: it takes
`traceparent` and `tracestate` from `_meta` of requests and puts them into those that it sends (SEP-414,
https://modelcontextprotocol.io/seps/414-request-meta). Executions begin below the request's span, and a tool's span
is current while the tool runs, so both join up without being told.
"""

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

import anyio
from opentelemetry import trace
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, TracerProvider

from planwarden.agent import events as ev
from planwarden.agent.prompts import Prompt
from planwarden.agent.state import Execution
from planwarden.server.telemetry.metrics import Metrics
from planwarden.server.telemetry.settings import Observation
from planwarden.server.telemetry.spans import Spans

logger = logging.getLogger(__name__)

SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
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
        number = version("planwarden")
        tracer = self.tracer_provider.get_tracer("planwarden", number, SCHEMA)
        self._spans = Spans(tracer, model, record_arguments=record_arguments)
        self._metrics = Metrics(self.meter_provider.get_meter("planwarden", number, SCHEMA))
        self._shutdown = shutdown

    def starting(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        try:
            return self._spans.starting(execution_id, thread_id)
        # Exporters and processors are other people's code; an execution must not fail because it is looked at.
        except Exception:
            logger.exception("the first span of execution %s could not be made", execution_id)
            return None

    def committed(self, execution: Execution, recorded: Sequence[ev.Recorded], *, owned: bool) -> None:
        for entry in recorded:
            try:
                self._metrics.count(execution, entry.event)
                self._spans.record(execution, entry, owned=owned)
            # As above.
            except Exception:
                logger.exception("event %s of execution %s was not observed", entry.sequence, execution.execution_id)

    @contextmanager
    def performing(self, execution: Execution, key: str, prompt: Prompt | None, at: float) -> Generator[None]:
        try:
            span = self._spans.job(execution, key, prompt, at)
        # As above.
        except Exception:
            logger.exception("%s of execution %s was not observed", key, execution.execution_id)
            span = trace.INVALID_SPAN
        with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    async def aclose(self) -> None:
        """End open spans and send what is left, for at most `FLUSH_S` when the providers are our own."""
        self._spans.close()
        if self._shutdown is None:
            return
        # A thread of its own, and a daemon: a collector that hangs must not keep the process from ending.
        sending = threading.Thread(target=self._shutdown, name="planwarden-telemetry", daemon=True)
        sending.start()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(sending.join, FLUSH_S)


def exported(observation: Observation, model: str, *, whole_process: bool) -> Telemetry:
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
