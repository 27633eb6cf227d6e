"""Notifications that wait to be delivered, as the port that every store implements beside its executions.

They are written by `Store.append`, in the transaction of what they tell; here they are claimed, delivered and given up.
Times are Unix seconds by the store's clock.
"""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.notifications import Notification

MAX_WAITING = 10_000
"""Of all channels together. Above that the oldest go, because the newest are the ones that somebody can still act on."""


class NotificationQueue(Protocol):
    """Laws:

    * Of racing claims one gets a notification; until its lease is over nobody else does.
    * `postpone` and `give_up` change nothing for a claim that is no longer the newest.
    * What is not delivered any more stands in the audit (`notice_failed`), written in the same transaction.
    """

    async def is_due(self, channel: str) -> bool:
        """Whether there is something to claim; costs no write."""
        ...

    async def claim(self, channel: str, *, limit: int, lease_s: float) -> tuple[Notification, ...]:
        """Due notifications, oldest first, with the number of this attempt; nobody else gets them for `lease_s`."""
        ...

    async def delivered(self, notification_id: str) -> None:
        """It was delivered, by whatever claim; it is gone."""
        ...

    async def postpone(self, notification: Notification, until: float) -> bool:
        """Not to be claimed before `until`."""
        ...

    async def give_up(self, notification: Notification, reason: str) -> bool:
        """It is gone, and the audit says why."""
        ...

    async def sweep(self, channels: Collection[str], before: float) -> int:
        """Give up what was written before that time for channels other than these; gives their number."""
        ...

    async def waiting(self) -> Mapping[str, int]:
        """How many there are for each channel."""
        ...


@runtime_checkable
class HasNotifications(Protocol):
    """A store from which notifications can be delivered."""

    @property
    def notifications(self) -> NotificationQueue: ...


TOO_MANY = f"more than {MAX_WAITING} notifications were waiting"
NO_CHANNEL = "no process could deliver to this channel; it was removed, renamed or lacks its secret"


def failure(notification: Notification, reason: str) -> AuditEntry:
    """The row of the audit for a notification that will not be delivered. `reason` holds nothing from outside."""
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
