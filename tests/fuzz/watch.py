"""What goes wrong beside the answer: stalls of the event loop, and log lines that report a defect.

A stall is the time between two ticks of the loop that this process spent computing: the lesser of the wall clock and
of its own processor time, so that other programs on a busy machine do not count, and a thread of ours that keeps the
interpreter's lock does.
"""

import asyncio
import logging
import time
from collections.abc import Generator
from contextlib import contextmanager

TICK_S = 0.002
STALL_S = 0.1


class LoopWatch:
    """Ticks in the running loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._at = (0.0, 0.0)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts, or starts anew."""
        if self._timer is not None:
            self._timer.cancel()
        self._longest_s = 0.0
        self._at = (time.monotonic(), time.process_time())
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> float:
        """Returns the longest stall in seconds, the time of the ticks themselves included."""
        if self._timer is None:
            return 0.0
        self._measure()
        self._timer.cancel()
        return self._longest_s

    def _tick(self) -> None:
        self._measure()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _measure(self) -> None:
        now = (time.monotonic(), time.process_time())
        self._longest_s = max(self._longest_s, min(now[0] - self._at[0], now[1] - self._at[1]))
        self._at = now


class LogWatch(logging.Handler):
    """Keeps the records that report a defect: those with a traceback, and those of the event loop."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: list[str] = []
        self._formatter = logging.Formatter("%(levelname)s %(name)s: %(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.stack_info or "Traceback" in record.getMessage() or record.name == "asyncio":
            self._found.append(self._formatter.format(record))

    def take(self) -> list[str]:
        """Returns what was logged since the last call."""
        found, self._found = self._found, []
        return found


@contextmanager
def watching_log() -> Generator[LogWatch]:
    """Takes all log lines of this process; nothing reaches the terminal."""
    root, watch = logging.getLogger(), LogWatch()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [watch]
    root.setLevel(logging.WARNING)
    try:
        yield watch
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
