"""Standing grants at a terminal: what a person is asked to allow, and what was allowed."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue

from planwarden.agent.approval.grants import VERSION_DIGITS, describe_uses_a_day
from planwarden.server.api.grants import FoundStep, GrantedStepView, GrantRequest, GrantView, StepCall
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.escaping import escape_text, format_value, shorten_id
from planwarden.server.views.grant_words import describe_names, describe_value_source
from planwarden.server.views.instants import format_instant

MAX_CALLS = 20
"""Calls of a step that are shown one by one."""
HOUR_S, DAY_S = 3600.0, 86_400.0


def list_terms(request: GrantRequest, target: FoundStep | None) -> Iterator[TerminalLine]:
    """Yield everything that the grant lets through, for the person who decides; `target` is the step it is for."""
    yield _line(f"Tool: {escape_text(request.tool_name)}")
    if target is None:
        yield from (
            _line(f"  {escape_text(name)} = {format_value(value, None)}") for name, value in request.arguments.items()
        )
        yield from (_line(f"  {escape_text(name)} may be anything", is_open=True) for name in request.free)
        yield _line("  no other arguments")
        yield _line(f"At most {request.uses} time(s) in the next {request.expires_in_s / 60:.0f} minutes")
        return
    step = target.step
    yield _line(f"Step: {escape_text(step.step_id)} of the saved plan {escape_text(step.plan_name)}")
    yield _line(f"Version: {step.plan_digest[:VERSION_DIGITS]}")
    for call in target.calls[:MAX_CALLS]:
        yield from _list_arguments(call, request.arguments)
    if len(target.calls) > MAX_CALLS:
        yield _line(f"and {len(target.calls) - MAX_CALLS} more calls of {escape_text(request.tool_name)}")
    if target.is_loop:
        yield _line("The step is a loop: it makes these calls for each item, and each of them is a use.")
    if target.attempts > 1:
        yield _line(f"The tool is called again if it failed, {target.attempts} times at most; each attempt is a use.")
    yield _line(f"At most {describe_uses_a_day(request.uses)}, for the next {_format_time(request.expires_in_s)}")
    whose = "everybody" if request.owner is None else escape_text(request.owner)
    yield _line(f"In runs of {whose}. A change of the plan or of the tool asks again, and so do retries and forks.")


def _list_arguments(call: StepCall, fixed_values: Mapping[str, JsonValue]) -> Iterator[TerminalLine]:
    yield _line("The plan calls it with:")
    if not call.arguments and not fixed_values:
        yield _line("  no arguments")
    for name, value in {**call.arguments, **fixed_values}.items():
        if name in call.takes and name not in fixed_values:
            sources = ", ".join(map(describe_value_source, call.takes[name]))
            yield _line(f"  {escape_text(name)} = {format_value(value, None)}: any value of {sources}", is_open=True)
        else:
            only = ", and no other value" if name in fixed_values else ""
            yield _line(f"  {escape_text(name)} = {format_value(value, None)}{only}")


def _format_time(seconds: float) -> str:
    unit_s, unit = next(
        (pair for pair in ((DAY_S, "day"), (HOUR_S, "hour")) if seconds % pair[0] == 0), (60.0, "minute")
    )
    count = round(seconds / unit_s)
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _line(text: str, *, is_open: bool = False) -> TerminalLine:
    return TerminalLine(((text, "warn"),)) if is_open else TerminalLine((text,))


def draw_grants(terminal: Terminal, grants: Sequence[GrantView]) -> None:
    if not grants:
        terminal.say("No standing grants.")
    for grant in grants:
        state = describe_state(grant)
        until = format_instant(grant.expires_at)
        uses = f"{grant.uses_left} of {grant.uses} left{'' if grant.step is None else ' today (UTC)'}"
        terminal.say(
            TerminalLine(
                (
                    (escape_text(grant.tool_name), "bold"),
                    f"  {uses}, until {until}  ",
                    (state, "good" if state == "open" else "dim"),
                ),
                "done" if state == "open" else "waits",
            ),
            TerminalLine(((shorten_id(grant.grant_id), "dim"),), indent=1),
        )
        if grant.step is not None:
            terminal.say(TerminalLine((_describe_step(grant.step),), indent=1))
        for name, value in grant.arguments.items():
            terminal.say(TerminalLine((f"{escape_text(name)} = {format_value(value)}",), indent=1))
        if grant.step is None:
            terminal.say(TerminalLine((f"with {describe_names(grant.arguments, grant.free)}",), indent=1))


def describe_state(grant: GrantView) -> str:
    """Return `open`, or why the grant lets no call of a new run through."""
    if not grant.is_open:
        return "over"
    if grant.is_stale:
        return "stale: the tool changed"
    return "stale: the plan changed" if grant.step is not None and grant.step.has_changed else "open"


def _describe_step(step: GrantedStepView) -> str:
    return (
        f"step {escape_text(step.step_id)} of the saved plan {escape_text(step.plan)}, "
        f"version {step.version[:VERSION_DIGITS]}"
    )
