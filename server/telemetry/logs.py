"""Writes log lines to stderr, as plain text or JSON; never to stdout, which carries the protocol. Also logs stalls.

A piece of code that blocks the event loop renews no lease and answers no request. A task notices this: it asks to be
woken at short intervals and measures how late it wakes up. Long delays go to the log and to a file of limited size in
the home; `doctor` reads that file. The task is also late if the process was stopped or got no processor, but then the
process used little processor time.
"""

import json
import logging
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO, cast

import anyio
import msgspec

from planwarden.agent.common.errors import count_of
from planwarden.server.telemetry.settings import TelemetrySettings

logger = logging.getLogger(__name__)

PLAIN = "planwarden: %(levelname)s: %(message)s"
MAX_CHARS = 8_000
"""The most characters of a message or a traceback."""
STALLS_FILE = "stalls.jsonl"
STALL_S = 0.1
"""The delay from which a stall counts."""
STALL_WARNING_S = 1.0
"""The seconds that a stall must last to be logged as a warning; a shorter one is logged as information."""
INTERVAL_S = 0.05
REPORT_S = 10.0
"""The shortest time between two reports of stalls; each has the number of stalls since the last, and the longest."""
MAX_STALLS_BYTES = 64 * 1024


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


class Stalls(msgspec.Struct, frozen=True):
    """The stalls of one process since its last report, or all that the files in the home record."""

    count: int
    longest_s: float
    computed_s: float
    """Seconds of processor time that the process used during the longest stall."""
    at: float
    """When the longest stall ended, in seconds since 1970."""


class StallWatch:
    """Collects stalls, and reports them in at most one line every `REPORT_S` seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: Stalls | None = None
        self._next_report = 0.0

    def note(self, late_s: float, computed_s: float, *, now: float, at: float) -> None:
        """Note how late the task was, and report if due. `now` is a monotonic time, `at` is in seconds since 1970."""
        if late_s > STALL_S:
            self._pending = _add_stalls(self._pending, Stalls(1, late_s, computed_s, at))
        if self._pending is not None and now >= self._next_report:
            self._next_report = now + REPORT_S
            self._report(self._pending)
            self._pending = None

    def _report(self, stalls: Stalls) -> None:
        level = logging.WARNING if stalls.longest_s >= STALL_WARNING_S else logging.INFO
        logger.log(level, "%s", describe_stalls(stalls))
        line = json.dumps([os.getpid(), stalls.count, stalls.longest_s, stalls.computed_s, stalls.at])
        with suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > MAX_STALLS_BYTES:
                os.replace(self._path, self._path.with_suffix(".old.jsonl"))
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0) as file:
                file.write(f"{line}\n".encode())

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            before, computed = time.monotonic(), time.process_time()
            await anyio.sleep(INTERVAL_S)
            now = time.monotonic()
            self.note(now - before - INTERVAL_S, time.process_time() - computed, now=now, at=time.time())


def read_stalls(home: Path) -> Stalls | None:
    """Return the stalls that all processes recorded in the home; None if there are none. Ignore damaged lines."""
    total: Stalls | None = None
    for path in (home / STALLS_FILE, (home / STALLS_FILE).with_suffix(".old.jsonl")):
        with suppress(OSError):
            for line in path.read_bytes()[: 2 * MAX_STALLS_BYTES].splitlines():
                with suppress(ValueError, TypeError):
                    _, count, longest_s, computed_s, at = json.loads(line)
                    total = _add_stalls(total, Stalls(int(count), float(longest_s), float(computed_s), float(at)))
    return total


def describe_stalls(stalls: Stalls) -> str:
    """Return the stalls as one sentence."""
    if stalls.computed_s > stalls.longest_s / 2:
        why = "something computed without a pause"
    else:
        why = "the process was stopped, or the machine was busy or slept"
    return (
        f"the event loop stood still {count_of(stalls.count, 'time')}, at most {stalls.longest_s:.2f} s, "
        f"and the process computed for {stalls.computed_s:.2f} s of it: {why}"
    )


def _add_stalls(total: Stalls | None, new: Stalls) -> Stalls:
    if total is None:
        return new
    longest = max(total, new, key=lambda stalls: stalls.longest_s)
    return Stalls(total.count + new.count, longest.longest_s, longest.computed_s, longest.at)
