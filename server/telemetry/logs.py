"""Lines on stderr: plain ones for people, or one JSON object each for machines. Never on stdout, which is the protocol's."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO, cast

from planwarden.server.telemetry.settings import TelemetrySettings

PLAIN = "planwarden: %(levelname)s: %(message)s"
MAX_CHARS = 8_000
"""Of one message or traceback."""


class JsonLines(logging.Formatter):
    """Each record as one line of JSON: `time`, `level`, `logger`, `message`, and if there are any `execution_id` and
    `thread_id` of the execution at work, `trace_id`, `span_id`, `trace_flags` of the current span, and `exception`.

    The names of the trace's fields: https://opentelemetry.io/docs/specs/otel/compatibility/logging_trace_context/.
    """

    def __init__(self, *, traced: bool) -> None:
        """With `traced`, lines written during a span name it; OpenTelemetry must be installed."""
        # Here, because lines for people do without, and so does a server that has only begun.
        from planwarden.agent.runtime.run import running

        super().__init__()
        self._traced = traced
        self._running = running

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_CHARS],
        }
        at_work = self._running.get()
        if at_work is not None:
            line["execution_id"], line["thread_id"] = at_work
        if self._traced:
            line.update(_span_ids())
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-MAX_CHARS:]
        return json.dumps(line)


def log_to_stderr(observation: TelemetrySettings) -> None:
    """Plain lines on stderr, unless the program has set up logging already or `[logging]` says something else."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=PLAIN)
    if observation.log_format is None and observation.log_level is None:
        return
    formatter = JsonLines(traced=observation.is_on) if observation.log_format == "json" else logging.Formatter(PLAIN)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        # Only what this process writes to its own stderr; handlers of an embedding program stay.
        if (
            type(handler) is logging.StreamHandler
            and cast("logging.StreamHandler[TextIO]", handler).stream is sys.stderr
        ):
            handler.setFormatter(formatter)
    logging.getLogger("planwarden").setLevel((observation.log_level or "warning").upper())


def _span_ids() -> dict[str, str]:
    try:
        from opentelemetry import trace
    except ImportError:
        return {}
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(found.trace_id),
        "span_id": trace.format_span_id(found.span_id),
        "trace_flags": f"{found.trace_flags:02x}",
    }
