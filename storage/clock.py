"""Clocks: the machine's, and one that moves only when a test advances it."""

import time

LEASE_S = 15.0
"""Seconds by the store's clock after which an owner loses a lease that it does not renew."""


class SystemClock:
    """Unix time of this machine. All processes that share a SQLite file share a machine, so it is the store's clock."""

    def now(self) -> float:
        return time.time()


class ManualClock:
    """Starts at `now` and stands still until `advance`."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
