"""Notifications in a SQL database. A claim is a conditional update, so two processes never deliver the same one."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.execution.notifications import Notification
from planwarden.agent.ports.environment import Clock
from planwarden.storage.ports.notifications import MAX_WAITING, NO_CHANNEL, TOO_MANY, failure
from planwarden.storage.sql.database import Database, SqlTransaction
from planwarden.storage.sql.rows import read_object

_COLUMNS = ("notification_id", "channel", "kind", "execution_id", "suspension_id", "facts", "created_at", "attempts")


def add_notifications(transaction: SqlTransaction, notifications: Iterable[Notification], now: float) -> None:
    """Store new ones inside the caller's transaction; the oldest give way."""
    for notification in notifications:
        values = (
            notification.notification_id,
            notification.channel,
            notification.kind,
            notification.execution_id,
            notification.suspension_id,
        )
        transaction.execute("add_notification", (*values, canonical_json(notification.facts), notification.created_at))
    limit_notifications(transaction, now)


def limit_notifications(transaction: SqlTransaction, now: float) -> None:
    """Give up the oldest ones beyond the limit."""
    if int(transaction.execute("notifications_span").fetchall()[0][0]) > MAX_WAITING:
        dropped = transaction.execute("drop_oldest_notifications", (MAX_WAITING,)).fetchall()
        _fail(transaction, [_bare(row) for row in dropped], TOO_MANY, now)


class SqlNotifications:
    """Implements `NotificationQueue`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def is_due(self, channel: str) -> bool:
        parameters = (channel, self._clock.now())
        return bool(await self._database.fetch("is_notification_due", parameters))

    async def claim(self, channel: str, *, limit: int, lease_s: float) -> tuple[Notification, ...]:
        def take(transaction: SqlTransaction) -> tuple[Notification, ...]:
            now = self._clock.now()
            rows = transaction.execute("claim_notifications", (now + lease_s, channel, now, limit)).fetchall()
            notifications: list[Notification] = []
            for row in rows:
                try:
                    notifications.append(_notification(row))
                except (ValueError, TypeError):
                    # Nobody could ever send it, and it must not stand in the way of the others.
                    transaction.execute("delete_notification", (row[0],))
                    _fail(transaction, [_bare(row)], "its row is damaged", now)
            return tuple(sorted(notifications, key=lambda notification: notification.created_at))

        return await self._database.write(take)

    async def delivered(self, notification_id: str) -> None:
        await self._database.write(
            lambda transaction: transaction.execute("delete_notification", (notification_id,)).rowcount
        )

    async def postpone(self, notification: Notification, until: float) -> bool:
        values = (until, notification.notification_id, notification.attempts)
        return await self._database.write(
            lambda transaction: transaction.execute("postpone_notification", values).rowcount == 1
        )

    async def give_up(self, notification: Notification, reason: str) -> bool:
        def end(transaction: SqlTransaction) -> bool:
            is_ours = (
                transaction.execute(
                    "give_up_notification", (notification.notification_id, notification.attempts)
                ).rowcount
                == 1
            )
            _fail(transaction, [notification] if is_ours else [], reason, self._clock.now())
            return is_ours

        return await self._database.write(end)

    async def sweep(self, channels: Collection[str], before: float) -> int:
        def end(transaction: SqlTransaction) -> int:
            now = self._clock.now()
            rows = transaction.execute("old_notifications", (before, json.dumps(sorted(channels)), now)).fetchall()
            _fail(transaction, [_bare(row) for row in rows], NO_CHANNEL, now)
            return len(rows)

        return await self._database.write(end)

    async def waiting(self) -> Mapping[str, int]:
        return dict(await self._database.fetch("waiting_notifications"))


def _fail(transaction: SqlTransaction, notifications: Sequence[Notification], reason: str, now: float) -> None:
    if notifications:
        transaction.add_audit([failure(notification, reason) for notification in notifications], now)


def _notification(row: tuple[Any, ...]) -> Notification:
    fields = dict(zip(_COLUMNS, row, strict=True))
    fields["facts"] = read_object(fields["facts"])
    return msgspec.convert(fields, Notification)


def _bare(row: tuple[Any, ...]) -> Notification:
    """The row without its facts, which are of no use any more."""
    notification_id, channel, kind, execution_id, suspension_id, _, created_at, attempts = row
    return Notification(
        notification_id=notification_id,
        channel=channel,
        kind=kind,
        execution_id=execution_id,
        suspension_id=suspension_id,
        facts={},
        created_at=created_at,
        attempts=attempts,
    )
