"""Writes log lines to stderr, as plain text or JSON; never to stdout, which carries the protocol."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO, cast

from planwarden.server.telemetry.settings import TelemetrySettings

PLAIN = "planwarden: %(levelname)s: %(message)s"
MAX_CHARS = 8_000
"""The most characters of a message or a traceback."""


class JsonLines(logging.Formatter):
    """Formats each record as one line of JSON: `time`, `level`, `logger` and `message`.

    It adds, where they exist, the `execution_id` and `thread_id` of the running execution, the `trace_id`, `span_id`
    and `trace_flags` of the current span, and `exception`.

    The trace fields are named as in https://opentelemetry.io/docs/specs/otel/compatibility/logging_trace_context/.
    """

    def __init__(self, *, traced: bool) -> None:
        """If `traced`, add the current span of OpenTelemetry to each line."""
        # Imported only for JSON lines, so that a server with plain lines starts without that module.
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
        running = self._running.get()
        if running is not None:
            line["execution_id"], line["thread_id"] = running
        if self._traced:
            line.update(_read_span_ids())
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-MAX_CHARS:]
        return json.dumps(line)


def log_to_stderr(observation: TelemetrySettings) -> None:
    """Log plain lines to stderr, unless the program has configured logging or `[logging]` asks for another format."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=PLAIN)
    root, own = logging.getLogger(), logging.getLogger("planwarden")
    if observation.log_level is not None:
        own.setLevel(observation.log_level.upper())
    elif own.level == logging.NOTSET and root.level > logging.WARNING:
        # The command has configured logging already, to show only errors to a person at a terminal.
        own.setLevel(logging.WARNING)
    if observation.log_format is None and observation.log_level is None:
        return
    formatter = JsonLines(traced=observation.is_on) if observation.log_format == "json" else logging.Formatter(PLAIN)
    for handler in root.handlers[:]:
        # Handlers of an embedding program keep their format.
        if (
            type(handler) is logging.StreamHandler
            and cast("logging.StreamHandler[TextIO]", handler).stream is sys.stderr
        ):
            handler.setFormatter(formatter)


def _read_span_ids() -> dict[str, str]:
    from opentelemetry import trace

    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(span.trace_id),
        "span_id": trace.format_span_id(span.span_id),
        "trace_flags": f"{span.trace_flags:02x}",
    }
