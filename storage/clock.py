"""Clocks: the machine's, and one that moves only when a test advances it."""

import time

LEASE_S = 15.0
"""Steady seconds after which a lease runs out unless its owner renews it."""


class SystemClock:
    """The time of this machine, and so of a SQLite store: all processes that share the file run on one machine."""

    def now(self) -> float:
        return time.time()

    def steady(self) -> float:
        """Return seconds since the machine started. On Linux and macOS they do not advance while the machine sleeps."""
        return time.monotonic()


class ManualClock:
    """A clock that starts at `now` and moves only by `advance` or `jump`."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now
        self._steady = now

    def now(self) -> float:
        return self._now

    def steady(self) -> float:
        return self._steady

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        self._steady += seconds

    def jump(self, seconds: float) -> None:
        """Set the time forward or back, as a person may do; the steady seconds do not change."""
        self._now += seconds
