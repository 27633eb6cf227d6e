"""The commands `grant list`, `grant add` and `grant revoke`: standing approvals that a person makes at a terminal."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority
from planwarden.agent.approval.grants import VERSION_DIGITS, describe_uses_a_day
from planwarden.agent.common.errors import InvalidArguments, UsageError, count_of
from planwarden.server.api.grants import FoundStep, GrantRequest, GrantView, StepCall
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import CommandParser, read_value, split_pairs
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, write_result
from planwarden.server.settings.configuration import find_operator
from planwarden.server.views.decisions import describe_names, describe_value_source, name_owner
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import complete_id, escape_text, format_value, shorten_id
from planwarden.server.views.instants import format_instant

MAX_CALLS = 20
"""The most calls of a step that are shown one by one."""
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


def add_grant(parser: CommandParser) -> None:
    listing = parser.add_command("list", handle_list, "List standing approvals.")
    listing.declare("--open", "only grants that a call can still use")
    add = parser.add_command("add", handle_add, "Allow calls of a tool in advance; asks at the terminal.")
    add.declare("tool TOOL", "name of the tool, as `planwarden tools` lists it")
    add.declare("--arg NAME=VALUE", "a value that the call must have", action="append", default=[])
    text = "an argument that may have any value or be absent; an argument that is named nowhere must be absent"
    add.declare("--any NAME", text, action="append", default=[])
    add.declare("--any-other", "like --any, for all other arguments of the tool")
    add.declare("--uses N", "number of calls, at most 1000", type=int)
    add.declare("--plan NAME", "only for runs of this saved plan, as it is now")
    add.declare("--step ID", "with --plan: only for the calls that the plan writes in this step")
    add.declare("--uses-per-day N", "with --plan: number of calls on each calendar day in UTC, at most 1000", type=int)
    add.declare("--for TIME", "duration: 30m, 2h, 90d; at most 8h, or 90d with --plan", dest="duration", required=True)
    add.declare("--owner NAME", "only for executions of this principal")
    revoke = parser.add_command("revoke", handle_revoke, "End a standing approval now.", has_json=False)
    revoke.declare("grant GRANT", "id of the grant, or the beginning of it")


def handle_list(arguments: Namespace) -> int:
    grants = open_home(arguments).run(lambda service: service.grants.list(only_open=arguments.open), "reader")
    return write_result(arguments, {"grants": [to_json(grant) for grant in grants]}, draw_grants, grants)


def handle_add(arguments: Namespace) -> int:
    request = _read_request(arguments)
    terminal = build_terminal(arguments)
    terminal.check_can_ask(
        "a grant lets calls run without asking again, so it is made by a person in a terminal or the inbox"
    )
    home = open_home(arguments)

    async def complete(service: Service) -> tuple[GrantRequest, FoundStep | None]:
        step = None
        if arguments.plan is not None:
            step = await service.grants.find_step(arguments.plan, arguments.step, request.tool_name)
        return await service.grants.complete(replace(request, step=None if step is None else step.step)), step

    # Find every mistake before asking the person.
    whole_request, step = home.run(complete, "checker")
    terminal.panel("Allow these calls without asking?", [*list_terms(whole_request, step)], "warn")
    if not terminal.confirm("Allow them?", "Nothing was allowed."):
        return FAILED
    grant = home.run(lambda service: service.grants.make(whole_request, _build_authority()), "recorder")
    return write_result(arguments, to_json(grant), draw_grants, (grant,))


def handle_revoke(arguments: Namespace) -> int:
    async def revoke(service: Service) -> None:
        grant_ids = [view.grant_id for view in await service.grants.list(only_open=False)]
        await service.grants.revoke(complete_id(arguments.grant, grant_ids, "grant"), _build_authority())

    open_home(arguments).run(revoke, "recorder")
    build_terminal(arguments).say("The grant is over.")
    return DONE


def _read_request(arguments: Namespace) -> GrantRequest:
    """Return the request that the options describe, without a step. Raises `UsageError` if options do not go
    together."""
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
        arguments={name: read_value(text) for name, text in split_pairs(arguments.arg, is_unique=True)},
        free=tuple(arguments.any),
        opens_others=arguments.any_other,
        uses=uses,
        expires_in_s=_parse_duration(arguments.duration),
        owner=arguments.owner,
    )


def _parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `90m`, `2h` or `30d`. Raises `InvalidArguments` for any other form."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) <= 6 and unit in _UNITS):
        raise InvalidArguments(f"{text[:40]!r} is not a duration; write 30m, 2h or 90d")
    return int(number) * _UNITS[unit]


def _build_authority() -> Authority:
    return Authority(assurance="human", channel="terminal", principal=find_operator())


def list_terms(request: GrantRequest, target: FoundStep | None) -> Iterator[TerminalLine | str]:
    """Yield lines that tell the person what the grant allows. `target` is the step that the grant is for, or None."""
    yield f"Tool: {escape_text(request.tool_name)}"
    if target is None:
        yield from (f"  {escape_text(name)} = {format_value(value, None)}" for name, value in request.arguments.items())
        yield from (TerminalLine((f"  {escape_text(name)} may be anything", "warn")) for name in request.free)
        yield "  no other arguments"
        yield f"At most {count_of(request.uses, 'time')} in the next {request.expires_in_s / 60:.0f} minutes"
        return
    step = target.step
    yield f"Step: {escape_text(step.step_id)} of the saved plan {escape_text(step.plan_name)}"
    yield f"Version: {step.plan_digest[:VERSION_DIGITS]}"
    for call in target.calls[:MAX_CALLS]:
        yield from _list_arguments(call, request.arguments)
    if len(target.calls) > MAX_CALLS:
        yield f"and {len(target.calls) - MAX_CALLS} more calls of {escape_text(request.tool_name)}"
    if target.is_loop:
        yield "The step is a loop: it makes these calls for each item, and each of them is a use."
    if target.attempts > 1:
        yield f"The tool is called again if it failed, {target.attempts} times at most; each attempt is a use."
    units = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
    unit_s, unit = next(pair for pair in units if request.expires_in_s % pair[0] == 0)
    period = count_of(round(request.expires_in_s / unit_s), unit)
    yield f"At most {describe_uses_a_day(request.uses)}, for the next {period}"
    whose = name_owner(request.owner)
    yield f"In runs of {whose}. A change of the plan or of the tool asks again, and so do retries and forks."


def _list_arguments(call: StepCall, fixed_values: Mapping[str, JsonValue]) -> Iterator[TerminalLine | str]:
    yield "The plan calls it with:"
    if not call.arguments and not fixed_values:
        yield "  no arguments"
    for name, value in {**call.arguments, **fixed_values}.items():
        if name in call.sources and name not in fixed_values:
            sources = ", ".join(map(describe_value_source, call.sources[name]))
            yield TerminalLine((f"  {escape_text(name)} = {format_value(value, None)}: any value of {sources}", "warn"))
        else:
            only = ", and no other value" if name in fixed_values else ""
            yield f"  {escape_text(name)} = {format_value(value, None)}{only}"


def draw_grants(terminal: Terminal, grants: Sequence[GrantView]) -> None:
    if not grants:
        terminal.say("No standing grants.")
    for grant in grants:
        state = describe_state(grant)
        until = format_instant(grant.expires_at)
        uses = f"{grant.uses_left} of {grant.uses} left{'' if grant.step is None else ' today (UTC)'}"
        terminal.line(
            (escape_text(grant.tool_name), "bold"),
            f"  {uses}, until {until}  ",
            (state, "good" if state == "open" else "dim"),
            mark="done" if state == "open" else "waits",
        )
        terminal.line((shorten_id(grant.grant_id), "dim"), indent=1)
        if grant.step is not None:
            step = grant.step
            plan = f"step {escape_text(step.step_id)} of the saved plan {escape_text(step.plan)}"
            terminal.line(f"{plan}, version {step.version[:VERSION_DIGITS]}", indent=1)
        for name, value in grant.arguments.items():
            terminal.line(f"{escape_text(name)} = {format_value(value)}", indent=1)
        if grant.step is None:
            terminal.line(f"with {describe_names(grant.arguments, grant.free)}", indent=1)


def describe_state(grant: GrantView) -> str:
    """Return `open`, or why no call of a new run can use the grant."""
    if not grant.is_open:
        return "over"
    if grant.is_stale:
        return "stale: the tool changed"
    return "stale: the plan changed" if grant.step is not None and grant.step.has_changed else "open"
