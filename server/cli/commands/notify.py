"""The command `notify test`: a test notification to every channel, and what came back."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.notifications import Notification
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.notifications.channels import NotificationChannel
from planwarden.server.notifications.messages import outgoing
from planwarden.server.settings.configuration import FILE, Settings
from planwarden.storage.clock import SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTest:
    """What one channel said."""

    channel: NotificationChannel
    is_delivered: bool
    said: str

    def to_json(self) -> dict[str, JsonValue]:
        channel = self.channel
        return {
            "name": channel.name,
            "kind": channel.kind,
            "host": channel.host,
            "delivered": self.is_delivered,
            "said": self.said,
        }


def send_test(settings: Settings, name: str | None) -> tuple[ChannelTest, ...]:
    """What came back from every channel, or from the one called `name`. Nothing is stored or tried again.

    Raises:
        UsageError: there is no such channel.
    """
    chosen = [channel for channel in settings.channels if name in (None, channel.name)]
    if not chosen:
        known = ", ".join(repr(channel.name) for channel in settings.channels)
        what = f"there is no channel {name!r}; known are {known}" if known else f"{FILE} has no [[notify]] channel"
        raise UsageError(f"{what}; docs/notifications.md says how to write one")

    async def work() -> tuple[ChannelTest, ...]:
        return tuple([await _tested(channel) for channel in chosen])

    return anyio.run(work)


async def _tested(channel: NotificationChannel) -> ChannelTest:
    if channel.problem is not None:
        return ChannelTest(channel=channel, is_delivered=False, said=channel.problem)
    # Imported here: it brings the HTTP client, which the other commands do not need.
    from planwarden.server.notifications.post import post

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
    receipt = await post(outgoing(channel, notification, now, None), now=now)
    return ChannelTest(channel=channel, is_delivered=receipt.is_delivered, said=receipt.said)


def draw_tested(terminal: Terminal, found: Sequence[ChannelTest]) -> None:
    width = max(len(tested.channel.name) for tested in found)
    for tested in found:
        name = (tested.channel.name.ljust(width), "bold")
        where = "" if tested.channel.problem else f"{tested.channel.host} "
        terminal.say(TerminalLine((name, f"  {where}{tested.said}"), "done" if tested.is_delivered else "failed"))
