"""Notifications that wait to be delivered.

An append writes them, in the transaction of the event that they report. Here they are claimed, delivered or given up. A
claim is a conditional update, so a notification has only one valid claim. Times are Unix seconds by the store's clock.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec.structs import asdict

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.notifications import Notification
from planwarden.storage.sql.database import Database, SqlTransaction
from planwarden.storage.sql.rows import name_values, read_object

MAX_WAITING = 10_000
"""The most notifications that wait in all channels together. The oldest are given up: people can act on the newest."""
TOO_MANY = f"more than {MAX_WAITING} notifications were waiting"
NO_CHANNEL = "no process could deliver to this channel; it was removed, renamed or lacks its secret"


def add_notifications(transaction: SqlTransaction, notifications: Iterable[Notification], now: float) -> None:
    """Store notifications inside the caller's transaction; if too many are waiting, the oldest are given up."""
    for notification in notifications:
        values = {**asdict(notification), "facts": canonical_json(notification.facts)}
        transaction.execute("add_notification", [*values.values()][:-1])
    if int(transaction.execute("notifications_span").fetchall()[0][0]) > MAX_WAITING:
        dropped = transaction.execute("drop_oldest_notifications", (MAX_WAITING,)).fetchall()
        _fail(transaction, map(_read_bare, dropped), TOO_MANY, now)


class NotificationQueue:
    """The waiting notifications. Guarantees:

    * Exactly one of several racing claims gets a notification, and no other claim gets it before the lease ends.
    * `postpone` and `give_up` change nothing for a claim that is no longer the newest.
    * A notification that is given up has a row in the audit (`notice_failed`), written in the same transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._clock = database.clock

    async def is_due(self, channel: str) -> bool:
        """Return True if `claim` would return something; write nothing."""
        return bool(await self._database.fetch("is_notification_due", (channel, self._clock.now())))

    async def claim(self, channel: str, *, limit: int, lease_s: float) -> tuple[Notification, ...]:
        """Return due notifications, oldest first, with this attempt counted; no other claim gets them for `lease_s`."""

        def take(transaction: SqlTransaction) -> tuple[Notification, ...]:
            now = self._clock.now()
            rows = transaction.execute("claim_notifications", (now + lease_s, channel, now, limit)).fetchall()
            notifications: list[Notification] = []
            for row in rows:
                try:
                    notifications.append(_read(row))
                except (ValueError, TypeError):
                    # A damaged notification can never be sent, and must not hold up the others.
                    transaction.execute("delete_notification", (row[0],))
                    _fail(transaction, [_read_bare(row)], "its row is damaged", now)
            return tuple(sorted(notifications, key=lambda notification: notification.created_at))

        return await self._database.write(take)

    async def delivered(self, notification_id: str) -> None:
        """Delete a notification that was delivered, whichever claim delivered it."""
        await self._database.execute("delete_notification", (notification_id,))

    async def postpone(self, notification: Notification, until: float) -> bool:
        """Let no claim get the notification before `until`; return False if the caller's claim is outdated."""
        values = (until, notification.notification_id, notification.attempts)
        return await self._database.execute("postpone_notification", values) == 1

    async def give_up(self, notification: Notification, reason: str) -> bool:
        """Delete the notification and record the reason in the audit; return False if the claim is outdated."""
        values = (notification.notification_id, notification.attempts)
        return await self._database.write(
            lambda transaction: transaction.execute("give_up_notification", values).rowcount == 1,
            _build_failure(notification, reason),
        )

    async def sweep(self, channels: Collection[str], before: float) -> int:
        """Give up due notifications older than `before`, for channels not in `channels`; return their number."""

        def end(transaction: SqlTransaction) -> int:
            now = self._clock.now()
            rows = transaction.execute("old_notifications", (before, json.dumps(sorted(channels)), now)).fetchall()
            _fail(transaction, map(_read_bare, rows), NO_CHANNEL, now)
            return len(rows)

        return await self._database.write(end)

    async def waiting(self) -> Mapping[str, int]:
        """Return the number of waiting notifications of each channel."""
        return dict(await self._database.fetch("waiting_notifications"))


@runtime_checkable
class HasNotifications(Protocol):
    """A store from which notifications can be delivered."""

    @property
    def notifications(self) -> NotificationQueue: ...


def _fail(transaction: SqlTransaction, notifications: Iterable[Notification], reason: str, now: float) -> None:
    entries = [_build_failure(notification, reason) for notification in notifications]
    if entries:
        transaction.add_audit(entries, now)


def _build_failure(notification: Notification, reason: str) -> AuditEntry:
    """Return the audit row of a notification that will not be delivered. `reason` must not hold text from outside."""
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


def _read(row: Sequence[Any]) -> Notification:
    fields = name_values(Notification, row)
    return msgspec.convert({**fields, "facts": read_object(fields["facts"])}, Notification)


def _read_bare(row: Sequence[Any]) -> Notification:
    """Return the notification of a row without its facts, whatever types its columns have."""
    fields = name_values(Notification, row)
    fields["facts"] = {}
    return Notification(**fields)
