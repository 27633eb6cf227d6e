"""The commands `grant list`, `grant add` and `grant revoke`: standing approvals, made at a terminal by a person."""

from collections.abc import Sequence

import anyio
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority
from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.server.api.grants import GrantRequest, GrantView
from planwarden.server.cli.home import CliHome
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.configuration import operator
from planwarden.server.views.facts import escape_text, value_text

CHANNEL = "terminal"
YES = ("y", "yes")
_UNITS = {"m": 60.0, "h": 3600.0}


def list_grants(home: CliHome, *, only_open: bool) -> tuple[GrantView, ...]:
    async def work() -> tuple[GrantView, ...]:
        async with home.looking() as service:
            return await service.grants.list(only_open=only_open)

    return anyio.run(work)


def add_grant(home: CliHome, terminal: Terminal, request: GrantRequest) -> GrantView | None:
    """The new grant; None when the person at the terminal did not say yes.

    Raises:
        UsageError: nobody can be asked here, or the request is not usable.
    """
    if not terminal.can_ask:
        raise UsageError(
            "a grant lets calls run without asking again, so it is made by a person in a terminal or the inbox"
        )
    lines = [
        TerminalLine((f"Tool: {escape_text(request.tool_name)}",)),
        *(TerminalLine((f"  {escape_text(name)} = {value_text(value)}",)) for name, value in request.arguments.items()),
        TerminalLine(("  all other arguments may be anything",)),
        TerminalLine((f"At most {request.uses} time(s) in the next {request.expires_in_s / 60:.0f} minutes",)),
    ]
    terminal.panel("Allow these calls without asking?", lines, "warn")
    if (terminal.ask("Allow them? [y yes · Enter no] ") or "").lower() not in YES:
        return None

    async def work() -> GrantView:
        async with home.acting(follows=False) as service:
            return await service.grants.make(request, _authority())

    return anyio.run(work)


def revoke_grant(home: CliHome, grant_id: str) -> None:
    async def work() -> None:
        async with home.acting(follows=False) as service:
            await service.grants.revoke(grant_id, _authority())

    anyio.run(work)


def draw_grants(terminal: Terminal, grants: Sequence[GrantView]) -> None:
    if not grants:
        terminal.say("No standing grants.")
    for grant in grants:
        state = (
            "open" if grant.is_open and not grant.is_stale else "stale: the tool changed" if grant.is_open else "over"
        )
        until = grant.expires_at.isoformat(timespec="seconds").replace("+00:00", "Z")
        terminal.say(
            TerminalLine(
                (
                    (escape_text(grant.tool_name), "bold"),
                    f"  {grant.uses_left} of {grant.uses} left, until {until}  ",
                    (state, "good" if state == "open" else "dim"),
                ),
                "done" if state == "open" else "waits",
            ),
            TerminalLine(((grant.grant_id, "dim"),), indent=1),
        )
        for name, value in grant.arguments.items():
            terminal.say(TerminalLine((f"{escape_text(name)} = {value_text(value)}",), indent=1))


def arguments_of(pairs: Sequence[str]) -> dict[str, JsonValue]:
    """`NAME=VALUE` words as arguments: a value that is JSON is that value, any other is text.

    Raises:
        InvalidArguments: a word has no `=`, or a name comes twice.
    """
    found: dict[str, JsonValue] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise InvalidArguments(f"--arg {pair[:80]!r} is not NAME=VALUE")
        if name in found:
            raise InvalidArguments(f"--arg names {name!r} twice")
        try:
            found[name] = read_json(text)
        except PlanwardenError:
            found[name] = text
    return found


def seconds_of(text: str) -> float:
    """Seconds of a duration such as `90m` or `2h`. Raises `InvalidArguments` for any other form."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) <= 6 and unit in _UNITS):
        raise InvalidArguments(f"{text[:40]!r} is not a duration; write 30m or 2h")
    return int(number) * _UNITS[unit]


def _authority() -> Authority:
    return Authority(assurance="human", channel=CHANNEL, principal=operator())
