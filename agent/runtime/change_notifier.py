"""Wakes those who wait for a change of one execution, and calls those who listen to every commit."""

import asyncio
from collections.abc import Callable
from functools import partial

from planwarden.agent.ports.watchers import Commit, Listener


class ChangeNotifier:
    """Keeps watches and listeners. A watch is set once and then removed; a listener stays until it is stopped."""

    def __init__(self) -> None:
        self._watches: dict[str, asyncio.Event] = {}
        self._stop_watches: dict[str, asyncio.Event] = {}
        self._listeners: dict[Listener, None] = {}

    @property
    def watched(self) -> list[str]:
        """Ids of the executions that somebody watches."""
        return [*self._watches.keys() | self._stop_watches.keys()]

    def watch(self, execution_id: str) -> asyncio.Event:
        """Return an event that is set at the next change of the execution."""
        return self._watches.setdefault(execution_id, asyncio.Event())

    def watch_stop(self, execution_id: str) -> asyncio.Event:
        """Return an event that is set when the execution no longer runs in this process, or another process changed
        it."""
        return self._stop_watches.setdefault(execution_id, asyncio.Event())

    def wake(self, execution_id: str, *, is_running: bool = False) -> None:
        """Set the watches on the execution; if it `is_running` in this process, only those of `watch`."""
        for watches in (self._watches,) if is_running else (self._watches, self._stop_watches):
            watch = watches.pop(execution_id, None)
            if watch is not None:
                watch.set()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every commit from now on, until the returned function is called."""
        self._listeners[listener] = None
        return partial(self._listeners.pop, listener, None)

    def notify(self, commit: Commit | None) -> None:
        """Call every listener with the commit, or with None if another process committed something."""
        for listener in tuple(self._listeners):
            listener(commit)
