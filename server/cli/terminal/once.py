"""Business keys at a terminal: which calls have them, and what a person is asked to free."""

from collections.abc import Iterator, Sequence

from planwarden.server.api.once import OnceKeyView
from planwarden.server.cli.terminal.commands import shorten
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.facts import escape_text, format_value
from planwarden.server.views.instants import format_instant


def draw_keys(terminal: Terminal, keys: Sequence[OnceKeyView]) -> None:
    if not keys:
        terminal.say("No call has a key.")
    for found in keys:
        terminal.say(
            TerminalLine(((escape_text(found.tool_name), "bold"), f"  until {format_instant(found.ends_at)}"), "done"),
            *(TerminalLine((text,), indent=1) for text in _list_values(found)),
            TerminalLine(((_describe_call(found), "dim"),), indent=1),
        )


def list_terms(found: OnceKeyView) -> Iterator[TerminalLine]:
    """Yields everything about the call that has the key, for the person who decides."""
    yield TerminalLine((f"Tool: {escape_text(found.tool_name)}",))
    yield from (TerminalLine((f"  {text}",)) for text in _list_values(found))
    yield TerminalLine((f"The first one: {_describe_call(found)}",))
    yield TerminalLine(
        (f"It keeps the key until {format_instant(found.ends_at)}. Forgotten, its effect may happen twice.",)
    )


def _list_values(found: OnceKeyView) -> Iterator[str]:
    for pointer, value in found.values.items():
        yield f"{escape_text(pointer.removeprefix('/'))} = {format_value(value)}"


def _describe_call(found: OnceKeyView) -> str:
    return (
        f"call {escape_text(found.call_id)} of execution {escape_text(shorten(found.execution_id))}, started by "
        f"{escape_text(found.principal)}, at {format_instant(found.taken_at)}"
    )
