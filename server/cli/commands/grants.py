"""The commands `grant list`, `grant add` and `grant revoke`: standing approvals that a person makes at a terminal."""

from argparse import Namespace
from collections.abc import Sequence

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority
from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.server.api.grants import FoundStep, GrantRequest, GrantView
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import open_home, split_pairs
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, FAILED, build_terminal, print_json, write_result
from planwarden.server.cli.terminal.grants import draw_grants, list_terms
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.configuration import find_operator
from planwarden.server.views.encoding import to_json

CHANNEL = "terminal"
YES = ("y", "yes")
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


def add_grant_commands(parser: CommandParser) -> None:
    commands = parser.add_commands("list|add|revoke")
    listing = commands.add("list", handle_list, "List standing approvals.")
    listing.add_argument("--open", action="store_true", help="only those that a call can still use")
    add = commands.add("add", handle_add, "Allow calls of a tool in advance; asks at the terminal.")
    add.add_argument("tool", metavar="TOOL", help="name of the tool, as `planwarden tools` lists it")
    add.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="a value that the call must have")
    text = "an argument that may have any value or be absent; an argument that is named nowhere must be absent"
    add.add_argument("--any", action="append", default=[], metavar="NAME", help=text)
    add.add_argument("--any-other", action="store_true", help="as --any for all other arguments of the tool")
    add.add_argument("--uses", type=int, metavar="N", help="number of calls, at most 1000")
    add.add_argument("--plan", metavar="NAME", help="only for runs of this saved plan, as it is now")
    add.add_argument("--step", metavar="ID", help="with --plan: only for calls that this step of it writes")
    text = "with --plan: number of calls on each calendar day in UTC, at most 1000"
    add.add_argument("--uses-per-day", type=int, metavar="N", help=text)
    text = "duration: 30m, 2h, 90d; at most 8h, or 90d with --plan"
    add.add_argument("--for", dest="duration", required=True, metavar="TIME", help=text)
    add.add_argument("--owner", metavar="NAME", help="only for executions of this principal")
    revoke = commands.add("revoke", handle_revoke, "End a standing approval now.", has_json=False)
    revoke.add_argument("grant", metavar="GRANT", help="id of the grant, or the beginning of it")


def handle_list(arguments: Namespace) -> int:
    home = open_home(arguments)
    grants = home.run(lambda service: service.grants.list(only_open=arguments.open), "reader")
    write_result(
        arguments, {"grants": [to_json(grant) for grant in grants]}, lambda terminal: draw_grants(terminal, grants)
    )
    return DONE


def handle_add(arguments: Namespace) -> int:
    request = read_request(arguments)
    terminal = build_terminal(arguments)
    if not terminal.can_ask:
        raise UsageError(
            "a grant lets calls run without asking again, so it is made by a person in a terminal or the inbox"
        )
    home = open_home(arguments)
    request, step = complete_request(home, request, arguments.plan, arguments.step)
    grant = add_grant(home, terminal, request, step)
    if grant is None:
        terminal.say("Nothing was allowed.")
        return FAILED
    if arguments.json:
        print_json(to_json(grant))
    else:
        draw_grants(terminal, (grant,))
    return DONE


def handle_revoke(arguments: Namespace) -> int:
    revoke_grant(open_home(arguments), arguments.grant)
    build_terminal(arguments).say("The grant is over.")
    return DONE


def read_request(arguments: Namespace) -> GrantRequest:
    """Return what the options ask for, without the step. Raises `UsageError` for options that do not go together."""
    is_for_step = arguments.plan is not None
    uses: int | None = arguments.uses_per_day if is_for_step else arguments.uses
    if is_for_step != (arguments.step is not None):
        raise UsageError("--plan and --step go together: the saved plan, and its step that makes the calls")
    if is_for_step and (arguments.uses is not None or uses is None):
        raise UsageError("a grant for a step of a saved plan has --uses-per-day, and not --uses")
    if uses is None or (not is_for_step and arguments.uses_per_day is not None):
        raise UsageError("a grant has --uses; --uses-per-day goes with --plan and --step")
    return GrantRequest(
        tool_name=arguments.tool,
        arguments=parse_arguments(arguments.arg),
        free=tuple(arguments.any),
        opens_others=arguments.any_other,
        uses=uses,
        expires_in_s=parse_duration(arguments.duration),
        owner=arguments.owner,
    )


def complete_request(
    home: Home, request: GrantRequest, plan: str | None, step_id: str
) -> tuple[GrantRequest, FoundStep | None]:
    """Return what the person will be asked about, and the step of the saved plan that makes the calls. Raises
    `UsageError` as `GrantService.make`, before anybody is asked.
    """

    async def work(service: Service) -> tuple[GrantRequest, FoundStep | None]:
        step = None
        if plan is not None:
            step = await service.grants.find_step(plan, step_id, request.tool_name)
        step_request = replace(request, step=None if step is None else step.step)
        return await service.grants.complete(step_request), step

    return home.run(work, "checker")


def add_grant(home: Home, terminal: Terminal, request: GrantRequest, step: FoundStep | None = None) -> GrantView | None:
    """Ask the person at the terminal. Returns the new grant, or None when the person did not say yes.

    Raises:
        UsageError: the request is not usable.
    """
    terminal.panel("Allow these calls without asking?", [*list_terms(request, step)], "warn")
    if (terminal.ask("Allow them? [y yes · Enter no] ") or "").lower() not in YES:
        return None
    return home.run(lambda service: service.grants.make(request, _build_authority()), "recorder")


def revoke_grant(home: Home, beginning: str) -> None:
    """End the grant whose id begins so. Raises `UsageError`: there is none, or several begin so."""

    async def work(service: Service) -> None:
        grant_ids = [view.grant_id for view in await service.grants.list(only_open=False)]
        matching = [name for name in grant_ids if beginning and name.startswith(beginning)]
        if len(matching) > 1 and beginning not in matching:
            raise UsageError(f"several grants begin with {beginning[:64]!r}: {', '.join(matching[:5])}")
        is_unique = len(matching) == 1
        await service.grants.revoke(matching[0] if is_unique else beginning, _build_authority())

    home.run(work, "recorder")


def parse_arguments(pairs: Sequence[str]) -> dict[str, JsonValue]:
    """Return the arguments of `NAME=VALUE` pairs. A value is JSON if it is valid JSON, otherwise text.

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
    """Return the seconds of a duration such as `90m`, `2h` or `30d`. Raises `InvalidArguments` for any other form."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) <= 6 and unit in _UNITS):
        raise InvalidArguments(f"{text[:40]!r} is not a duration; write 30m, 2h or 90d")
    return int(number) * _UNITS[unit]


def _build_authority() -> Authority:
    return Authority(assurance="human", channel=CHANNEL, principal=find_operator())
