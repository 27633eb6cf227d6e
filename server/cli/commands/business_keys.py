"""The commands `once list` and `once forget`: calls that happen once per business key."""

from argparse import Namespace
from collections.abc import Iterator, Sequence

from planwarden.agent.approval.answers import Authority
from planwarden.server.api.business_keys import OnceKeyView
from planwarden.server.cli.arguments import CommandParser, read_value, split_pairs
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import FAILED
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, write_result
from planwarden.server.settings.configuration import find_operator
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, format_value, shorten_id
from planwarden.server.views.instants import format_instant


def add_once(parser: CommandParser) -> None:
    listing = parser.add_command("list", handle_list, "List the newest calls that keep their key, 200 at most.")
    listing.declare("--tool TOOL", "only calls of this tool")
    forget = parser.add_command("forget", handle_forget, "Let a call with a key happen again; asks at the terminal.")
    forget.declare("tool TOOL", "name of the tool")
    text = "a value of the key, by its pointer; JSON, or text where the call had text"
    forget.declare("--key NAME=VALUE", text, action="append", required=True)


def handle_list(arguments: Namespace) -> int:
    keys = open_home(arguments).run(lambda service: service.once.list(arguments.tool), "reader")
    return write_result(arguments, {"keys": [to_json(key) for key in keys]}, draw_keys, keys)


def handle_forget(arguments: Namespace) -> int:
    # Each text may be JSON, which is likelier, or the value itself.
    candidates = {
        name: (value, text) if (value := read_value(text)) != text else (text,)
        for name, text in split_pairs(arguments.key, "--key", is_unique=True)
    }
    terminal = build_terminal(arguments)
    terminal.check_can_ask("forgetting lets an effect happen again, so only a person at a terminal can do it")
    home = open_home(arguments)
    key = home.run(lambda service: service.once.find(arguments.tool, candidates), "reader")
    terms = [
        f"Tool: {escape_text(key.tool_name)}",
        *(f"  {text}" for text in _list_values(key)),
        f"The first one: {_describe_call(key)}",
        f"It keeps the key until {format_instant(key.ends_at)}. If it is forgotten, the effect may happen twice.",
    ]
    terminal.panel("Let this call happen again?", terms, "warn")
    if not terminal.confirm("Forget it?", "Nothing was forgotten."):
        return FAILED
    authority = Authority(assurance="human", channel="terminal", principal=find_operator())
    home.run(lambda service: service.once.forget(key, authority), "recorder")
    text = "The next call with this key will happen. `planwarden retry` continues a run whose call was refused."
    return write_result(arguments, to_json(key), Terminal.say, text)


def draw_keys(terminal: Terminal, keys: Sequence[OnceKeyView]) -> None:
    if not keys:
        terminal.say("No call has a key.")
    for key in keys:
        terminal.say(
            TerminalLine((escape_text(key.tool_name), "bold"), f"  until {format_instant(key.ends_at)}", mark="done"),
            *(TerminalLine(text, indent=1) for text in _list_values(key)),
            TerminalLine((_describe_call(key), "dim"), indent=1),
        )


def _list_values(key: OnceKeyView) -> Iterator[str]:
    for pointer, value in key.values.items():
        yield f"{escape_text(pointer.removeprefix('/'))} = {format_value(value)}"


def _describe_call(key: OnceKeyView) -> str:
    return (
        f"call {escape_text(key.call_id)} of execution {escape_text(shorten_id(key.execution_id))}, started by "
        f"{escape_text(key.principal)}, at {format_instant(key.taken_at)}"
    )
