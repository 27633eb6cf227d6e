"""Notifications: messages to people and programs outside about a question to a person, by push or webhook.

The store saves a notification in the transaction of its event, so that none is lost and none reports what did not
happen. It holds ids and names only: no arguments, no text of the agent, and nothing that lets its reader decide.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState, SuspensionState

NotificationKind = Literal["asked", "reminded", "escalated", "decided", "timed_out", "test"]
"""What happened; only a command of the operator sends `test`."""
SUBSCRIBABLE: tuple[NotificationKind, ...] = ("asked", "reminded", "escalated", "decided", "timed_out")
"""Kinds that a channel may select."""


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One message for one channel."""

    notification_id: str
    """The same for every attempt to deliver it; letters, digits and `_` only."""
    channel: str
    """The name of the channel in the operator's file."""
    kind: NotificationKind
    execution_id: str
    suspension_id: str
    facts: dict[str, JsonValue]
    created_at: float
    """When it happened, in Unix seconds."""
    attempts: int = 0
    """How often a sender has claimed it for delivery; distinguishes one claim from the next."""


def find_notifiable(
    recorded: Sequence[ev.Recorded], execution: ExecutionState
) -> Iterator[tuple[ev.Recorded, NotificationKind, SuspensionState]]:
    """Yields the events that a notification may report, each with its suspension, which a person has to decide.

    `execution` is the state after the events.
    """
    for entry in recorded:
        found = _find_kind(entry.event)
        if found is not None:
            kind, suspension_id = found
            suspension = execution.suspensions[suspension_id]
            if suspension.question.addressee == "human":
                yield entry, kind, suspension


def _find_kind(event: ev.Event) -> tuple[NotificationKind, str] | None:
    match event:
        case ev.Suspended(question=question):
            return "asked", question.suspension_id
        case ev.SuspensionReminded(suspension_id=suspension_id, kind=kind):
            return "reminded" if kind == "remind" else "escalated", suspension_id
        case ev.SuspensionDecided(suspension_id=suspension_id):
            return "decided", suspension_id
        case ev.SuspensionTimedOut(suspension_id=suspension_id):
            return "timed_out", suspension_id
        case _:
            return None
