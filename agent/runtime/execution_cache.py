"""The executions that this process knows: those that run here, the last states of idle ones, and who watches them."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import cast

import msgspec

from planwarden.agent.common.struct import plain_value
from planwarden.agent.core.execution.folds.transitions import LongTuple
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.watchers import Commit, Listener
from planwarden.agent.runtime.run import Run

MAX_IDLE = 256
"""The most idle executions to keep. With twice as many, executions take 3 % longer when 100 run at once, because their
states no longer fit into the CPU's caches."""
MAX_IDLE_BYTES = 16 * 1024 * 1024
"""The most bytes that the encoded states of idle executions may have in total; if a single state is larger, it alone is
kept. In memory, the states take up to 6 times as much."""

_ENCODER = msgspec.msgpack.Encoder(
    enc_hook=lambda value: (
        list(cast("LongTuple[object]", value)) if isinstance(value, LongTuple) else plain_value(value)
    )
)


class ExecutionCache:
    """The runs, and a cache of states that may be old: only the store knows the newest state of an execution."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.idle: OrderedDict[str, ExecutionState] = OrderedDict()
        """Executions that need nothing from this process, by execution id, the least recently cached first."""
        self._sizes: dict[str, int] = {}
        """Encoded bytes of idle executions."""
        self._newest: dict[str, str] = {}
        """By thread id: the id of the thread's idle execution that was cached last."""
        self._elsewhere: set[str] = set()
        """Ids of executions that another process owned when their header was last read; cleared at `MAX_IDLE` ids."""

    @property
    def is_busy(self) -> bool:
        """Whether something is running or waiting to be recorded here."""
        return any(run.is_busy for run in self.runs.values())

    def find_idle_in_thread(self, thread_id: str) -> ExecutionState | None:
        """Return the thread's idle execution that was cached last; None if there is none or it was dropped."""
        return self.idle.get(self._newest.get(thread_id, ""))

    def note_owner(self, execution_id: str, *, is_other: bool) -> None:
        """Remember whether another process owns the execution. Never rely on this: owners change, ids are forgotten."""
        self._elsewhere.discard(execution_id)
        if is_other:
            if len(self._elsewhere) >= MAX_IDLE:
                self._elsewhere.clear()
            self._elsewhere.add(execution_id)

    def seems_elsewhere(self, execution_id: str) -> bool:
        """Return whether another process owned the execution when its header was last read; False if forgotten."""
        return execution_id in self._elsewhere

    def cache_idle(self, execution: ExecutionState) -> None:
        self.idle[execution.execution_id] = execution
        self.idle.move_to_end(execution.execution_id)
        self._newest[execution.thread_id] = execution.execution_id
        self._sizes[execution.execution_id] = _measure(execution)
        while len(self.idle) > MAX_IDLE or (len(self.idle) > 1 and sum(self._sizes.values()) > MAX_IDLE_BYTES):
            self.drop_idle(next(iter(self.idle)))

    def drop_idle(self, execution_id: str) -> None:
        """Forget the last state of an idle execution; the store has it."""
        execution = self.idle.pop(execution_id, None)
        self._sizes.pop(execution_id, None)
        if execution is not None and self._newest.get(execution.thread_id) == execution_id:
            del self._newest[execution.thread_id]

    def remove_run(self, run: Run) -> None:
        """Forget `run` unless it was replaced. Keep its committed state, if any, as that of an idle execution."""
        execution = run.execution
        if self.runs.get(execution.execution_id) is run:
            del self.runs[execution.execution_id]
        if execution.version:
            self.cache_idle(execution)


def _measure(execution: ExecutionState) -> int:
    """Return the number of bytes of the encoded state, or of characters of its `repr` if it cannot be encoded."""
    try:
        return len(_ENCODER.encode(execution))
    except (OverflowError, UnicodeEncodeError):
        # Integers of more than 64 bits, halves of surrogate pairs.
        return len(repr(execution))


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
