"""The commands `grant list`, `grant add` and `grant revoke`: standing approvals that a person makes at a terminal."""

from argparse import Namespace
from collections.abc import Sequence

import anyio
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority
from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.server.api.grants import GrantRequest, GrantView
from planwarden.server.cli.arguments import split_pairs
from planwarden.server.cli.context import CliContext
from planwarden.server.cli.exit_codes import DONE, FAILED
from planwarden.server.cli.output import build_terminal, print_json, write_result
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.configuration import find_operator
from planwarden.server.views.encoding import to_json
from planwarden.server.views.facts import escape_text, format_value

CHANNEL = "terminal"
YES = ("y", "yes")
_UNITS = {"m": 60.0, "h": 3600.0}


def handle_list(arguments: Namespace) -> int:
    grants = list_grants(CliContext.from_arguments(arguments), only_open=arguments.open)
    write_result(
        arguments, {"grants": [to_json(grant) for grant in grants]}, lambda terminal: draw_grants(terminal, grants)
    )
    return DONE


def handle_add(arguments: Namespace) -> int:
    request = GrantRequest(
        tool_name=arguments.tool,
        arguments=parse_arguments(arguments.arg),
        uses=arguments.uses,
        expires_in_s=parse_duration(arguments.duration),
        owner=arguments.owner,
    )
    terminal = build_terminal(arguments)
    grant = add_grant(CliContext.from_arguments(arguments), terminal, request)
    if grant is None:
        terminal.say("Nothing was allowed.")
        return FAILED
    if arguments.json:
        print_json(to_json(grant))
    else:
        draw_grants(terminal, (grant,))
    return DONE


def handle_revoke(arguments: Namespace) -> int:
    revoke_grant(CliContext.from_arguments(arguments), arguments.grant)
    build_terminal(arguments).say("The grant is over.")
    return DONE


def list_grants(context: CliContext, *, only_open: bool) -> tuple[GrantView, ...]:
    async def work() -> tuple[GrantView, ...]:
        async with context.open_for_reading() as service:
            return await service.grants.list(only_open=only_open)

    return anyio.run(work)


def add_grant(context: CliContext, terminal: Terminal, request: GrantRequest) -> GrantView | None:
    """Asks the person at the terminal. Returns the new grant, or None when the person did not say yes.

    Raises:
        UsageError: nobody can be asked here, or the request is not usable.
    """
    if not terminal.can_ask:
        raise UsageError(
            "a grant lets calls run without asking again, so it is made by a person in a terminal or the inbox"
        )
    lines = [
        TerminalLine((f"Tool: {escape_text(request.tool_name)}",)),
        *(
            TerminalLine((f"  {escape_text(name)} = {format_value(value)}",))
            for name, value in request.arguments.items()
        ),
        TerminalLine(("  all other arguments may be anything",)),
        TerminalLine((f"At most {request.uses} time(s) in the next {request.expires_in_s / 60:.0f} minutes",)),
    ]
    terminal.panel("Allow these calls without asking?", lines, "warn")
    if (terminal.ask("Allow them? [y yes · Enter no] ") or "").lower() not in YES:
        return None

    async def work() -> GrantView:
        async with context.open_for_writing(follows=False) as service:
            return await service.grants.make(request, _build_authority())

    return anyio.run(work)


def revoke_grant(context: CliContext, grant_id: str) -> None:
    async def work() -> None:
        async with context.open_for_writing(follows=False) as service:
            await service.grants.revoke(grant_id, _build_authority())

    anyio.run(work)


def draw_grants(terminal: Terminal, grants: Sequence[GrantView]) -> None:
    if not grants:
        terminal.say("No standing grants.")
    for grant in grants:
        state = "over" if not grant.is_open else "stale: the tool changed" if grant.is_stale else "open"
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
            terminal.say(TerminalLine((f"{escape_text(name)} = {format_value(value)}",), indent=1))


def parse_arguments(pairs: Sequence[str]) -> dict[str, JsonValue]:
    """Returns the arguments of `NAME=VALUE` pairs. A value is JSON if it is valid JSON, otherwise text.

    Raises:
        InvalidArguments: a pair has another form, or a name occurs twice.
    """
    arguments: dict[str, JsonValue] = {}
    for name, text in split_pairs(pairs):
        if name in arguments:
            raise InvalidArguments(f"--arg names {name!r} twice")
        try:
            arguments[name] = read_json(text)
        except PlanwardenError:
            arguments[name] = text
    return arguments


def parse_duration(text: str) -> float:
    """Returns the seconds of a duration such as `90m` or `2h`. Raises `InvalidArguments` for any other form."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) <= 6 and unit in _UNITS):
        raise InvalidArguments(f"{text[:40]!r} is not a duration; write 30m or 2h")
    return int(number) * _UNITS[unit]


def _build_authority() -> Authority:
    return Authority(assurance="human", channel=CHANNEL, principal=find_operator())
