"""The command `notify test`: sends a test notification to every channel, or to one, and shows the replies."""

import secrets
from argparse import Namespace
from collections.abc import Sequence

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.execution.notifications import Notification
from planwarden.server.cli.arguments import CommandParser, read_settings
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.terminal import Terminal, write_result
from planwarden.server.notifications.delivery import DeliveryReceipt, post
from planwarden.server.notifications.messages import build_request
from planwarden.server.notifications.settings import NotificationChannel
from planwarden.storage.clock import SystemClock


def add_notify(parser: CommandParser) -> None:
    test = parser.add_command("test", handle_test, "Send a test notification now.")
    test.declare("--channel NAME", "send it only to this channel; default: to every channel")


def handle_test(arguments: Namespace) -> int:
    settings, name = read_settings(arguments), arguments.channel
    channels = [channel for channel in settings.channels if name in (None, channel.name)]
    if not channels:
        names = ", ".join(repr(channel.name) for channel in settings.channels)
        problem = (
            f"there is no channel {name!r}; known are {names}" if names else "planwarden.toml has no [[notify]] channel"
        )
        raise UsageError(f"{problem}; docs/notifications.md says how to write one")
    receipts = anyio.run(_send_tests, channels)
    document: dict[str, JsonValue] = {
        "channels": [
            {
                "name": channel.name,
                "kind": channel.kind,
                "host": channel.host,
                "delivered": receipt.is_delivered,
                "said": receipt.description,
            }
            for channel, receipt in receipts
        ]
    }
    write_result(arguments, document, draw_receipts, receipts)
    return DONE if all(receipt.is_delivered for _, receipt in receipts) else FAILED


def draw_receipts(terminal: Terminal, receipts: Sequence[tuple[NotificationChannel, DeliveryReceipt]]) -> None:
    width = max(len(channel.name) for channel, _ in receipts)
    for channel, receipt in receipts:
        host = "" if channel.problem else f"{channel.host} "
        mark = "done" if receipt.is_delivered else "failed"
        terminal.line((channel.name.ljust(width), "bold"), f"  {host}{receipt.description}", mark=mark)


async def _send_tests(channels: Sequence[NotificationChannel]) -> list[tuple[NotificationChannel, DeliveryReceipt]]:
    return [(channel, await _send_test(channel)) for channel in channels]


async def _send_test(channel: NotificationChannel) -> DeliveryReceipt:
    """Send one test to the channel and return the receipt; to a channel with a problem, send nothing. Store nothing."""
    if channel.problem is not None:
        return DeliveryReceipt(is_delivered=False, description=channel.problem)
    now = SystemClock().now()
    notification = Notification(
        notification_id=f"ntc_{secrets.token_hex(16)}",
        channel=channel.name,
        kind="test",
        execution_id="",
        suspension_id="",
        facts={},
        created_at=now,
    )
    return await post(build_request(channel, notification, now, None), now=now)
