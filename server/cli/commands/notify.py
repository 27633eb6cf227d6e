"""The command `notify test`: sends a test notification to every channel and shows the replies."""

import secrets
from argparse import Namespace
from collections.abc import Sequence

import anyio
import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.execution.notifications import Notification
from planwarden.server.cli.arguments import read_settings
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, FAILED, write_result
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.notifications.delivery import post
from planwarden.server.notifications.messages import build_request
from planwarden.server.notifications.settings import NotificationChannel
from planwarden.server.settings.configuration import FILE, Settings
from planwarden.storage.clock import SystemClock


class ChannelTest(msgspec.Struct, frozen=True, kw_only=True):
    """How one channel replied."""

    channel: NotificationChannel
    is_delivered: bool
    reply: str

    def to_json(self) -> dict[str, JsonValue]:
        channel = self.channel
        return {
            "name": channel.name,
            "kind": channel.kind,
            "host": channel.host,
            "delivered": self.is_delivered,
            "said": self.reply,
        }


def add_notify(parser: CommandParser) -> None:
    test = parser.add_commands("test").add("test", handle_test, "Send a test notification now.")
    test.add_argument("--channel", metavar="NAME", help="send it only to this channel; default: to every channel")


def handle_test(arguments: Namespace) -> int:
    tests = send_tests(read_settings(arguments), arguments.channel)
    write_result(
        arguments, {"channels": [test.to_json() for test in tests]}, lambda terminal: draw_tests(terminal, tests)
    )
    return DONE if all(test.is_delivered for test in tests) else FAILED


def send_tests(settings: Settings, name: str | None) -> tuple[ChannelTest, ...]:
    """Send a test to every channel, or to the one called `name`. Nothing is stored or sent again.

    Raises:
        UsageError: there is no such channel.
    """
    channels = [channel for channel in settings.channels if name in (None, channel.name)]
    if not channels:
        names = ", ".join(repr(channel.name) for channel in settings.channels)
        problem = f"there is no channel {name!r}; known are {names}" if names else f"{FILE} has no [[notify]] channel"
        raise UsageError(f"{problem}; docs/notifications.md says how to write one")

    async def work() -> tuple[ChannelTest, ...]:
        return tuple([await _send_test(channel) for channel in channels])

    return anyio.run(work)


def draw_tests(terminal: Terminal, tests: Sequence[ChannelTest]) -> None:
    width = max(len(test.channel.name) for test in tests)
    for test in tests:
        name = (test.channel.name.ljust(width), "bold")
        host = "" if test.channel.problem else f"{test.channel.host} "
        terminal.say(TerminalLine((name, f"  {host}{test.reply}"), "done" if test.is_delivered else "failed"))


async def _send_test(channel: NotificationChannel) -> ChannelTest:
    if channel.problem is not None:
        return ChannelTest(channel=channel, is_delivered=False, reply=channel.problem)
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
    receipt = await post(build_request(channel, notification, now, None), now=now)
    return ChannelTest(channel=channel, is_delivered=receipt.is_delivered, reply=receipt.description)
