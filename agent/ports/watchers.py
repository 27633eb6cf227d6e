"""What the engine calls while executions run: observers, the outbox, and listeners to commits."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import Notification
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.prompts import Prompt


class NotificationSource(Protocol):
    """Says whom to notify of what."""

    def notifications(self, recorded: Sequence[ev.Recorded], execution: ExecutionState) -> tuple[Notification, ...]:
        """Return the notifications to store with these events, in their order; `execution` is the state after them."""
        ...


class Observer(Protocol):
    """Observes the engine. Nothing depends on it: it must not raise, and it must not block."""

    def starting(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        """Return `traceparent` and `tracestate` for a new execution, or None. Called in the context of its creator."""
        ...

    def committed(self, execution: ExecutionState, recorded: Sequence[ev.Recorded], *, owned: bool) -> None:
        """Observe each transaction of this process, in order, once it is durable; `execution` is the state after it.

        `owned` is False if another process runs the execution, so that this one only recorded an answer or a command.
        """

    def performing(
        self, execution: ExecutionState, key: str, prompt: Prompt | None
    ) -> AbstractContextManager[Callable[[Sequence[ev.Event]], None]]:
        """Observe a prompt or the tool call with the id `key`, during a block. The yielded function gets its events."""
        ...

    def took_over(self, execution: ExecutionState, after_s: float, *, is_silent: bool) -> None:
        """Observe that this process continues an execution of a process that is silent if `is_silent`, and else dead.

        The other process last committed to the execution or renewed its lease `after_s` seconds ago.
        """

    def woke(self, execution: ExecutionState, after_s: float) -> None:
        """Observe that this process continues an execution, `after_s` seconds after another stored a decision."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction of this process that is durable."""

    execution: ExecutionState
    """The state after it."""
    is_foreign: bool
    """Whether another process runs the execution, so that this one only recorded an answer or another command."""


Listener = Callable[[Commit | None], None]
"""Called with each commit, or with None when another process committed something. It must not raise or block."""
