"""One of the processes that deliver notifications: `tests.server.notifications.worker:serve FOLDER PORT`.

It reads one JSON command a line and answers each with one line. The clock is a file that all of them share.
"""

from pathlib import Path

import anyio

from planwarden.server.notifications.channels import NotificationChannel
from planwarden.server.notifications.delivery import DeliveryReceipt, post
from planwarden.server.notifications.messages import OutgoingRequest
from planwarden.server.notifications.sender import NotificationSender
from planwarden.server.notifications.settings import NotifySettings, build_channels
from planwarden.storage.sqlite.store import SqliteStore
from tests.harness.clock import SharedClock
from tests.harness.process import say
from tests.harness.worker import read_commands

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def hook(port: int) -> NotificationChannel:
    url = f"http://127.0.0.1:{port}/hook"
    settings = NotifySettings(kind="webhook", name="hook", url=url, secret_env="HOOK_SECRET")
    return build_channels([settings], {"HOOK_SECRET": SECRET})[0]


async def _send(message: OutgoingRequest, now: float) -> DeliveryReceipt:
    return await post(message, now=now)


async def _send_and_hang(message: OutgoingRequest, now: float) -> DeliveryReceipt:
    """The receiver has it; nobody will ever hear of that from here."""
    await post(message, now=now)
    say(["sent"])
    await anyio.sleep_forever()
    raise AssertionError


async def serve(folder: Path, port: str) -> None:
    channel = hook(int(port))
    store = SqliteStore.open(folder / "planwarden.db", clock=SharedClock(folder / "clock"))
    async for command in read_commands():
        sender = NotificationSender(
            store, store.notifications, [channel], post=_send_and_hang if command == ["send and hang"] else _send
        )
        while await sender.deliver_due(channel):
            pass
        say(["delivered"])
    await store.close()
