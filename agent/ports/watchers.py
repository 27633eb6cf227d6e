"""Who looks on while executions run: observers, the outbox, and listeners to commits."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from planwarden.agent.core import events as ev
from planwarden.agent.core.notifications import Notification
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.state import ExecutionState


class NotificationSource(Protocol):
    """Who is to be told of what."""

    def notifications(self, recorded: Sequence[ev.Recorded], execution: ExecutionState) -> tuple[Notification, ...]:
        """What to store with these events, in their order; `execution` is the state after them."""
        ...


class Observer(Protocol):
    """Looks on. Nothing depends on it: it must not raise, and it must not block."""

    def starting(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        """`traceparent` and `tracestate` to store with a new execution, or None; called in its creator's context."""
        ...

    def committed(self, execution: ExecutionState, recorded: Sequence[ev.Recorded], *, owned: bool) -> None:
        """Told of every transaction of this process after it is durable, in order; `execution` is the state after it.

        Not `owned` are answers to executions that run in another process.
        """
        ...

    def performing(
        self, execution: ExecutionState, key: str, prompt: Prompt | None, at: float
    ) -> AbstractContextManager[object]:
        """Entered around a tool call, whose id `key` is, or around a prompt; it begins at `at` at the latest."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A transaction of this process that is durable."""

    execution: ExecutionState
    """The state after it."""
    is_foreign: bool
    """Another process runs the execution; this one recorded something for it."""


Listener = Callable[[Commit | None], None]
"""Told of each commit; None: another process committed, and nobody knows what. Must not raise or block."""
