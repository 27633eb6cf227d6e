"""Notices when code blocks the event loop. A blocked loop renews no lease and answers no request.

A task asks to be woken at short intervals and measures how late it wakes up. Long delays go to the log and to a file
of limited size in the home; `doctor` reads that file. The task is also late if the process was stopped or got no
processor, but then the process used little processor time.
"""

import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec

from planwarden.agent.common.errors import count_of

logger = logging.getLogger(__name__)

STALLS_FILE = "stalls.jsonl"
STALL_S = 0.1
"""The delay from which a stall counts."""
STALL_WARNING_S = 1.0
"""The seconds that a stall must last to be logged as a warning; a shorter one is logged as information."""
INTERVAL_S = 0.05
REPORT_S = 10.0
"""The shortest time between two reports. Each has the number of stalls since the last report, and the longest stall."""
MAX_STALLS_BYTES = 64 * 1024


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
