"""Which executions other processes committed to, as far as hints came; now and then any, because hints can be lost."""

import threading
import time
from collections import deque

from planwarden.agent.ports.store import Changes

KEPT = 1_000
"""Hints; whoever looks less often looks at everything."""
SWEEP_S = 5.0
"""Seconds after which anything may have changed, whatever hints came."""


class Hints:
    """Added to by one thread, read by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[frozenset[str] | None] = deque(maxlen=KEPT)
        self._number = 1
        """Of the newest hint."""
        self._swept_at = time.monotonic()

    def add(self, executions: frozenset[str] | None) -> None:
        """None when anything may have changed."""
        with self._lock:
            self._number += 1
            self._kept.append(executions)

    def read(self, since: int) -> Changes:
        """What came after the hint with the number `since`."""
        if time.monotonic() - self._swept_at >= SWEEP_S:
            self._swept_at = time.monotonic()
            self.add(None)
        with self._lock:
            new = self._number - since
            if new > len(self._kept):
                return Changes(self._number)
            found: set[str] = set()
            for executions in list(self._kept)[len(self._kept) - new :]:
                if executions is None:
                    return Changes(self._number)
                found |= executions
            return Changes(self._number, frozenset(found))
