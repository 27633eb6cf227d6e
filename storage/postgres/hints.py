"""Which executions other processes committed to, as far as hints came; now and then any, because hints can be lost."""

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress

import anyio

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
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def add(self, executions: frozenset[str] | None) -> None:
        """None when anything may have changed."""
        with self._lock:
            self._number += 1
            self._kept.append(executions)
            for loop, event in self._waiting:
                # A loop that ended meanwhile waits for nothing.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(event.set)

    async def wait(self, since: int, timeout_s: float) -> None:
        """Return when there is a hint after the one with the number `since`, or after `timeout_s`."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self._number > since:
                return
            self._waiting.add(entry)
        try:
            with anyio.move_on_after(timeout_s):
                await entry[1].wait()
        finally:
            with self._lock:
                self._waiting.discard(entry)

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
