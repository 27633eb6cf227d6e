"""The commands `once list` and `once forget`: calls that happen once per business key."""

from argparse import Namespace
from collections.abc import Sequence

import anyio
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority
from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.server.api.once import OnceKeyView
from planwarden.server.cli.arguments import split_pairs
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.confirmation import confirm
from planwarden.server.cli.context import CliContext
from planwarden.server.cli.exit_codes import DONE, FAILED
from planwarden.server.cli.output import build_terminal, print_json, write_result
from planwarden.server.cli.terminal.once import draw_keys, list_terms
from planwarden.server.settings.configuration import find_operator
from planwarden.server.views.encoding import to_json

CHANNEL = "terminal"


def add_once(parser: CommandParser) -> None:
    commands = parser.add_commands("list|forget")
    listing = commands.add("list", handle_list, "List the newest calls that keep their key, 200 at most.")
    listing.add_argument("--tool", metavar="TOOL", help="only calls of this tool")
    forget = commands.add("forget", handle_forget, "Let a call with a key happen again; asks at the terminal.")
    forget.add_argument("tool", metavar="TOOL", help="name of the tool")
    text = "a value of the key, by its pointer; JSON, or text where the call had text"
    forget.add_argument("--key", action="append", required=True, metavar="NAME=VALUE", help=text)


def handle_list(arguments: Namespace) -> int:
    keys = list_keys(CliContext.from_arguments(arguments), arguments.tool)
    write_result(arguments, {"keys": [to_json(key) for key in keys]}, lambda terminal: draw_keys(terminal, keys))
    return DONE


def handle_forget(arguments: Namespace) -> int:
    readings = read_values(arguments.key)
    terminal = build_terminal(arguments)
    if not terminal.can_ask:
        raise UsageError("forgetting lets an effect happen again, so a person says so at a terminal")
    context = CliContext.from_arguments(arguments)
    found = find_key(context, arguments.tool, readings)
    terminal.panel("Let this call happen again?", [*list_terms(found)], "warn")
    if not confirm(terminal, "Forget it?", says_yes=False):
        terminal.say("Nothing was forgotten.")
        return FAILED
    forget_key(context, found)
    if arguments.json:
        print_json(to_json(found))
    else:
        terminal.say("The next call with this key happens. `planwarden retry` goes on with what was refused.")
    return DONE


def list_keys(context: CliContext, tool_name: str | None) -> tuple[OnceKeyView, ...]:
    async def work() -> tuple[OnceKeyView, ...]:
        async with context.open_for_reading() as service:
            return await service.once.list(tool_name)

    return anyio.run(work)


def find_key(context: CliContext, tool_name: str, readings: dict[str, tuple[JsonValue, ...]]) -> OnceKeyView:
    """Returns the call that has the key. Raises `InvalidArguments` when there is none."""

    async def work() -> OnceKeyView:
        async with context.open_for_reading() as service:
            return await service.once.find(tool_name, readings)

    return anyio.run(work)


def forget_key(context: CliContext, found: OnceKeyView) -> None:
    async def work() -> None:
        async with context.open_for_writing(follows=False) as service:
            authority = Authority(assurance="human", channel=CHANNEL, principal=find_operator())
            await service.once.forget(found, authority)

    anyio.run(work)


def read_values(pairs: Sequence[str]) -> dict[str, tuple[JsonValue, ...]]:
    """Returns what each `NAME=VALUE` may mean, best first: its JSON, or the text as it stands.

    Raises:
        InvalidArguments: a pair has another form, or a name occurs twice.
    """
    readings: dict[str, tuple[JsonValue, ...]] = {}
    for name, text in split_pairs(pairs, "--key"):
        if name in readings:
            raise InvalidArguments(f"--key names {name!r} twice")
        try:
            readings[name] = (read_json(text), text)
        except PlanwardenError:
            readings[name] = (text,)
    return readings
