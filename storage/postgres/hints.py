"""Collects hints about what other processes changed. Hints can be lost, so sometimes everything counts as changed."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import anyio

from planwarden.agent.ports.store import Changes

UNOWNED = "!"
"""The mark before the id of an execution that may be running without an owner."""
EVERYTHING = "*"
"""The hint that names no ids: any execution may have changed."""
KEPT = 1_000
"""How many hints are kept; a reader that has missed more looks at everything."""
SWEEP_S = 5.0
"""Seconds after which a reader is told that anything may have changed, whatever hints came."""


def write_hint(execution_id: str, *, is_unowned: bool) -> str:
    return f"{UNOWNED}{execution_id}" if is_unowned else execution_id


def read_hints(texts: Sequence[str]) -> Changes:
    """Return the changes that another process reports in these texts; their number is 0 and means nothing."""
    if EVERYTHING in texts:
        return Changes(0)
    return Changes(
        0,
        frozenset(text.removeprefix(UNOWNED) for text in texts),
        has_unowned=any(text.startswith(UNOWNED) for text in texts),
    )


class Hints:
    """The newest hints; one thread adds them, and others read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Changes] = deque(maxlen=KEPT)
        self._number = 1
        """The number of the newest hint."""
        self._swept_at = time.monotonic()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def add(self, hint: Changes) -> None:
        """Add a hint under the next number, not under its own, and wake everybody who waits."""
        with self._lock:
            self._number += 1
            self._kept.append(hint)
            for loop, event in self._waiting:
                # A closed loop raises this error, and no task waits in it any more.
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
        """Return the changes after hint number `since`; without ids if any execution may have changed."""
        if time.monotonic() - self._swept_at >= SWEEP_S:
            self._swept_at = time.monotonic()
            self.add(Changes(0))
        with self._lock:
            new = self._number - since
            if new > len(self._kept):
                return Changes(self._number)
            executions: set[str] = set()
            hints = list(self._kept)[len(self._kept) - new :]
            for hint in hints:
                if hint.executions is None:
                    return Changes(self._number)
                executions |= hint.executions
            return Changes(self._number, frozenset(executions), has_unowned=any(hint.has_unowned for hint in hints))
