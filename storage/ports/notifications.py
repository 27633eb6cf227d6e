"""Notifications that wait to be delivered: a port that every store implements.

`Store.append` writes them, in the transaction of the event that they report. Here they are claimed, delivered or given
up. Times are Unix seconds by the store's clock.
"""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.notifications import Notification

MAX_WAITING = 10_000
"""Of all channels together. Beyond it the oldest are given up: people can still act on the newest."""


class NotificationQueue(Protocol):
    """Laws:

    * Exactly one of racing claims gets a notification, and no other claim gets it before the lease ends.
    * `postpone` and `give_up` change nothing for a claim that is no longer the newest.
    * A notification that is given up has a row in the audit (`notice_failed`), written in the same transaction.
    """

    async def is_due(self, channel: str) -> bool:
        """Return True if `claim` would return something; does not write."""
        ...

    async def claim(self, channel: str, *, limit: int, lease_s: float) -> tuple[Notification, ...]:
        """Return due notifications, oldest first, with the number of this attempt; no other claim gets them for
        `lease_s`."""
        ...

    async def delivered(self, notification_id: str) -> None:
        """Delete a notification that was delivered, whichever claim delivered it."""
        ...

    async def postpone(self, notification: Notification, until: float) -> bool:
        """Let nothing claim it before `until`; False if the claim is outdated."""
        ...

    async def give_up(self, notification: Notification, reason: str) -> bool:
        """Delete it and record the reason in the audit; False if the claim is outdated."""
        ...

    async def sweep(self, channels: Collection[str], before: float) -> int:
        """Give up notifications written before that time for channels other than these; returns their number."""
        ...

    async def waiting(self) -> Mapping[str, int]:
        """Return the number of notifications for each channel."""
        ...


@runtime_checkable
class HasNotifications(Protocol):
    """A store from which notifications can be delivered."""

    @property
    def notifications(self) -> NotificationQueue: ...


TOO_MANY = f"more than {MAX_WAITING} notifications were waiting"
NO_CHANNEL = "no process could deliver to this channel; it was removed, renamed or lacks its secret"


def failure(notification: Notification, reason: str) -> AuditEntry:
    """Return the row of the audit for a notification that will not be delivered. `reason` holds nothing from
    outside."""
    return AuditEntry(
        kind="notice_failed",
        execution_id=notification.execution_id,
        suspension_id=notification.suspension_id,
        facts={
            "channel": notification.channel,
            "event": notification.kind,
            "notification": notification.notification_id,
            "attempts": notification.attempts,
            "reason": reason,
        },
    )
