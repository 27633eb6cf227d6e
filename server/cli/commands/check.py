"""The commands `check`, `plans check` and `plans graph`: what can be said of a plan before it runs."""

from argparse import Namespace
from collections.abc import Iterable, Iterator

from pydantic import JsonValue

from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.cli.arguments import add_plan_arguments, open_home
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, FAILED, write_result
from planwarden.server.cli.plan_source import choose_plan, read_given_inputs
from planwarden.server.cli.terminal.lines import Part, TerminalLine, one_line
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.server.views.forecast import Allowed, Forecast, ForecastStep


def add_check(parser: CommandParser) -> None:
    parser.handle(handle_check, uses_servers=True)
    add_plan_arguments(parser)


def handle_check(arguments: Namespace) -> int:
    forecast = make_forecast(arguments)
    document: dict[str, JsonValue] = to_json(forecast)
    write_result(arguments, document, lambda terminal: terminal.say(*forecast_lines(forecast)))
    return FAILED if forecast.impossible else DONE


def handle_graph(arguments: Namespace) -> int:
    graph = make_forecast(arguments).graph or ""
    write_result(arguments, {"graph": graph}, lambda terminal: terminal.say(*graph.splitlines()))
    return DONE


def make_forecast(arguments: Namespace) -> Forecast:
    """Return the forecast of the plan that was named. Raises `UsageError` when it cannot run as written."""
    home = open_home(arguments)
    plan = choose_plan(home, arguments.plan)
    inputs = read_given_inputs(arguments, plan.document) or None
    return home.run(
        lambda service: service.forecast_plan(
            plan.document, inputs=inputs, name=plan.name, version=plan.version, principal=LOCAL
        ),
        "checker",
    )


def forecast_lines(forecast: Forecast) -> Iterator[TerminalLine]:
    """Yield the steps in order with what is known of each, then the graph."""
    for step in forecast.steps:
        yield from _step_lines(step, forecast)
    for warning in forecast.warnings:
        yield TerminalLine(((one_line(warning, 500), "warn"),), "note")
    if forecast.unseen:
        yield TerminalLine(((f"{forecast.unseen} more call(s) were not looked at", "warn"),), "note")
    yield TerminalLine()
    yield from (TerminalLine(((line, "dim"),)) for line in (forecast.graph or "").splitlines())


def _step_lines(step: ForecastStep, forecast: Forecast) -> Iterator[TerminalLine]:
    after = f"  after {_join(step.after)}" if step.after else ""
    parts: tuple[Part, ...] = ((escape_text(step.id), "bold"), "  ", _join(step.tools) or "text", (after, "dim"))
    asks = [asking for asking in forecast.asks if asking.step_id == step.id]
    yield TerminalLine(parts, "skipped" if step.skipped_because else "asks" if asks else "waits")
    if step.skipped_because:
        yield TerminalLine(((step.fate, "warn"),), indent=1)
        return
    yield from (TerminalLine(((asking.sentence, "warn"),), indent=1) for asking in asks)
    yield from (_allowed_line(allowed) for allowed in forecast.allowed if allowed.step_id == step.id)
    for ruled in forecast.by_rule:
        if ruled.step_id == step.id:
            text = f"{escape_text(ruled.tool_name)} will not ask: rule {ruled.rule.number} lets it through"
            yield TerminalLine(((text, "good"),), indent=1)
    for unforeseen in forecast.only_the_run_knows:
        if unforeseen.step_id == step.id:
            text = f"only the run will know: {escape_text(unforeseen.tool_name)} takes values of "
            risk = f"; its risk is {unforeseen.risk}"
            allowed = f"; {_describe_grant(unforeseen.grant_id)}" if unforeseen.grant_id is not None else ""
            yield TerminalLine(((f"{text}{_join(unforeseen.takes_from)}{risk}{allowed}", "warn"),), indent=1)
    for impossible in forecast.impossible:
        if impossible.step_id == step.id:
            why = one_line(impossible.why, 300)
            yield TerminalLine(((f"would fail: {escape_text(impossible.tool_name)}: {why}", "bad"),), indent=1)
    if step.is_conditional:
        yield TerminalLine(((step.fate, "dim"),), indent=1)
    if step.needs_model:
        yield TerminalLine((("a model writes its calls or its text", "dim"),), indent=1)


def _allowed_line(allowed: Allowed) -> TerminalLine:
    text = f"{escape_text(allowed.tool_name)} will not ask: {_describe_grant(allowed.grant_id)}"
    return TerminalLine(((text, "good"),), indent=1)


def _describe_grant(grant_id: str) -> str:
    return f"grant {escape_text(shorten_id(grant_id))} lets it through"


def _join(names: Iterable[str]) -> str:
    return ", ".join(map(escape_text, names))
