"""Delivers notifications: claims, sends and records them, tries again after a failure, and gives up in the end.

Each channel has its own task beside the engine. A slow or dead receiver delays only its own notifications, and the
shutdown does not wait for it. Delivery is at least once: a process that dies between sending and recording causes a
second delivery, with the same id. A live process's claim keeps other processes from sending the same notification.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.execution.notifications import Notification
from planwarden.agent.ports.store import Store
from planwarden.server.notifications.messages import DeliveryReceipt, OutgoingRequest, build_request
from planwarden.server.notifications.settings import NotificationChannel
from planwarden.storage.sql.notifications import NotificationQueue

logger = logging.getLogger(__name__)

TICK_S = 1.0
BATCH = 4
"""The most notifications that one channel sends at the same time."""
CLAIM_S = 60.0
"""How long a claim lasts; longer than an attempt can take."""
SWEEP_S = 3600.0
FIRST_WAIT_S = 5.0
GROWTH = 3.0
LONGEST_WAIT_S = 2 * 3600.0
MAX_ATTEMPTS = 12
GIVE_UP_AFTER_S = 24 * 3600.0
MIN_ATTEMPTS = 5
"""The fewest attempts before a notification is given up for its age, even if it was old at the first attempt."""

Post = Callable[[OutgoingRequest, float], Awaitable[DeliveryReceipt]]
"""A function that sends a request at the given current time; it never raises for an error of the receiver."""


class NotificationSender:
    """Delivers to the channels that have no `problem` in this process."""

    def __init__(
        self,
        store: Store,
        notifications: NotificationQueue,
        channels: Sequence[NotificationChannel],
        *,
        inbox: Callable[[], str | None] = lambda: None,
        post: Post | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`inbox` returns the address of the inbox at the time of sending; `jitter` returns a number from 0 to 1."""
        self._store = store
        self._notifications = notifications
        self._channels = [channel for channel in channels if channel.problem is None]
        for channel in channels:
            if channel.problem is not None:
                logger.warning("this process cannot deliver to channel %r: %s", channel.name, channel.problem)
        self._inbox = inbox
        self._post = post or _post
        self._jitter = jitter
        self._paused_until: dict[str, float] = {}
        """By channel: the end of the pause that the receiver asked for."""

    async def run(self) -> None:
        """Deliver until cancelled. A notification whose sending is cut off is sent again when its claim ends."""
        async with anyio.create_task_group() as tasks:
            for channel in self._channels:
                tasks.start_soon(self._repeat, partial(self.deliver_due, channel), TICK_S)
            tasks.start_soon(self._repeat, self.sweep, SWEEP_S)

    async def deliver_due(self, channel: NotificationChannel) -> bool:
        """Send a batch of the notifications that are due on one channel; return False if none could be claimed."""
        now = self._store.clock.now()
        if now < self._paused_until.get(channel.name, now) or not await self._notifications.is_due(channel.name):
            return False
        claimed = await self._notifications.claim(channel.name, limit=BATCH, lease_s=CLAIM_S)
        async with anyio.create_task_group() as tasks:
            for notification in claimed:
                tasks.start_soon(self._deliver_one, channel, notification)
        return bool(claimed)

    async def sweep(self) -> bool:
        """Give up notifications that waited a day for a channel that this process lacks or cannot use; return False."""
        names = [channel.name for channel in self._channels]
        if not names:
            return False
        given_up = await self._notifications.sweep(names, self._store.clock.now() - GIVE_UP_AFTER_S)
        if given_up:
            logger.warning("gave up %d notifications: their channels were removed or lack a secret", given_up)
        return False

    async def _deliver_one(self, channel: NotificationChannel, notification: Notification) -> None:
        if channel.kind != "webhook" and not await self._is_still_relevant(notification):
            await self._notifications.delivered(notification.notification_id)
            return
        sent_at = self._store.clock.now()
        receipt = await self._post(build_request(channel, notification, sent_at, self._inbox()), sent_at)
        if receipt.is_delivered:
            await self._notifications.delivered(notification.notification_id)
        else:
            await self._handle_failure(channel, notification, receipt)

    async def _handle_failure(
        self, channel: NotificationChannel, notification: Notification, receipt: DeliveryReceipt
    ) -> None:
        now, attempts = self._store.clock.now(), notification.attempts
        # The wait grows with each attempt; random jitter keeps many notifications from retrying at the same moment.
        growing_s = min(FIRST_WAIT_S * GROWTH ** (attempts - 1), LONGEST_WAIT_S) * (0.5 + self._jitter() / 2)
        wait_s = max(growing_s, receipt.retry_after_s or 0.0)
        is_too_old = now + wait_s - notification.created_at > GIVE_UP_AFTER_S and attempts >= MIN_ATTEMPTS
        if receipt.retry_after_s:
            self._paused_until = {name: until for name, until in self._paused_until.items() if until > now}
            self._paused_until[channel.name] = now + receipt.retry_after_s
        if is_too_old or attempts >= MAX_ATTEMPTS or receipt.is_final:
            if await self._notifications.give_up(notification, receipt.description):
                text = "gave up notification %s for channel %r after %d attempts: %s %s"
                where = (notification.notification_id, channel.name, attempts, channel.host)
                logger.warning(text, *where, receipt.description)
        else:
            logger.info(
                "channel %r: %s %s; trying again in %.0f s", channel.name, channel.host, receipt.description, wait_s
            )
            await self._notifications.postpone(notification, now + wait_s)

    async def _is_still_relevant(self, notification: Notification) -> bool:
        """Return whether to send: no phone should ring for a closed question, but an outcome is always relevant."""
        if notification.kind not in ("asked", "reminded", "escalated"):
            return True
        row = await self._store.find_suspension(notification.suspension_id)
        return row is not None and row.status == "pending"

    async def _repeat(self, work: Callable[[], Awaitable[bool]], pause_s: float) -> None:
        """Call `work` until cancelled; pause whenever it returns False or raises."""
        while True:
            has_more = False
            try:
                has_more = await work()
            except* PlanwardenError as group:
                logger.error("notifications: %s", group.exceptions[0])
            # One bad row must not end the task; the next call tries again.
            except* Exception:
                logger.exception("cannot deliver notifications; trying again")
            if not has_more:
                await anyio.sleep(pause_s)


async def _post(message: OutgoingRequest, now: float) -> DeliveryReceipt:
    from planwarden.server.notifications.delivery import post

    return await post(message, now=now)
