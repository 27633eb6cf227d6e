"""The commands `plans`, for plans in files, and `check`, which says what is known about a plan before it runs."""

from argparse import Namespace
from collections.abc import Iterator, Sequence

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import count_of
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan_parser import read_tool_names
from planwarden.agent.ports.store import Lookups
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.server.api.home import Home
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.home import add_plan_arguments, choose_plan, find_saved_plan, open_home, read_given_inputs
from planwarden.server.cli.output import DONE, FAILED, print_json
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import NO, Terminal, build_terminal, write_result
from planwarden.server.plans.library import HOME, PlanCatalogue
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.plans.plan_writer import (
    ProposedInput,
    build_document,
    check_keepable,
    check_new_name,
    describe_open_steps,
    propose_inputs,
    suggest_title,
    write_plan,
)
from planwarden.server.settings.configuration import PLAN_FOLDER
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.fields import Field, build_fields
from planwarden.server.views.forecast import Forecast, ForecastStep, join_names
from planwarden.server.views.status_text import VERSION_CHARS


def add_check(parser: CommandParser) -> None:
    parser.handle(handle_check, uses_servers=True)
    add_plan_arguments(parser)


def add_plans(parser: CommandParser) -> None:
    parser.handle(handle_list)
    show = parser.add_command("show", handle_show, "Show a saved plan: what it takes, and its steps.")
    show.declare("name NAME", "name of the plan")
    for name, handler, text in (
        ("check", handle_check, "Check a plan as `planwarden check` does. Nothing runs."),
        ("graph", handle_graph, "Print the graph of a plan as Mermaid text. Nothing runs."),
    ):
        add_plan_arguments(parser.add_command(name, handler, text, uses_servers=True))
    text = "Make a saved plan from a finished run; values of its goal become inputs."
    keep = parser.add_command("keep", handle_keep, text)
    keep.declare("thread THREAD", "its threadId, or the beginning of one")
    keep.declare("name NAME", "name of the new plan: letters, digits, - and _, at most 64")


def handle_list(arguments: Namespace) -> int:
    home = open_home(arguments)
    plans = home.library.look_now()
    document: dict[str, JsonValue] = {
        "plans": [_summarize(plan) for plan in plans.plans],
        "unusable": [{"name": fault.name, "file": str(fault.path), "reason": fault.reason} for fault in plans.faults],
        "hidden": [{"name": entry.name, "file": str(entry.path), "by": str(entry.by)} for entry in plans.hidden],
    }
    return write_result(arguments, document, draw_catalogue, home, plans)


def handle_show(arguments: Namespace) -> int:
    home = open_home(arguments)
    plan = find_saved_plan(home.library.look_now(), arguments.name)
    document: dict[str, JsonValue] = {**_summarize(plan), "file": str(plan.path), "plan": plan.document}
    return write_result(arguments, document, draw_plan, home, plan)


def handle_keep(arguments: Namespace) -> int:
    home = open_home(arguments)
    terminal = build_terminal(arguments)
    name: str = arguments.name
    check_new_name(home.library.look_now(), name)

    async def find_execution(store: Lookups) -> ExecutionState:
        headers = await home.find_thread(store, arguments.thread)
        return await load_execution(store, headers[-1])

    execution = home.read(find_execution)
    plan = check_keepable(execution)
    parameters = choose_inputs(terminal, propose_inputs(plan, execution.goal))
    document = build_document(plan, suggest_title(execution.goal), execution.inputs, parameters)
    gap = describe_open_steps(plan)
    comment = f"Kept by `planwarden plans keep` from thread {execution.thread_id}.{gap}"
    path = write_plan(home.settings.home / PLAN_FOLDER, name, document, comment)
    schema = document.get("inputs")
    inputs = [field.name for field in build_fields(schema if isinstance(schema, dict) else {})]
    takes = f"; it takes {', '.join(map(escape_text, inputs))}" if inputs else ""
    terminal.line(f"{path}: written{takes}", mark="done")
    if gap:
        terminal.say(gap.strip())
    terminal.line((home.command("run", name), "dim"))
    if arguments.json:
        print_json({"name": name, "file": str(path), "inputs": list[JsonValue](inputs)})
    return DONE


def handle_check(arguments: Namespace) -> int:
    forecast = make_forecast(arguments)
    write_result(arguments, to_json(forecast), Terminal.say, *forecast_lines(forecast))
    return FAILED if forecast.impossible else DONE


def handle_graph(arguments: Namespace) -> int:
    graph = make_forecast(arguments).graph or ""
    return write_result(arguments, {"graph": graph}, Terminal.say, *graph.splitlines())


def make_forecast(arguments: Namespace) -> Forecast:
    """Return the forecast of the plan that was named. Raises `UsageError` if the plan cannot run as written."""
    home = open_home(arguments)
    plan = choose_plan(home, arguments.plan)
    inputs = read_given_inputs(arguments, plan.document) or None
    return home.run(
        lambda service: service.forecast_plan(
            plan.document, inputs=inputs, name=plan.name, version=plan.version, principal=LOCAL
        ),
        "checker",
    )


def choose_inputs(terminal: Terminal, proposed: Sequence[ProposedInput]) -> list[ProposedInput]:
    """Return the proposals that the person wants as inputs; all of them if the terminal cannot ask."""
    if not terminal.can_ask:
        return list(proposed)
    if proposed:
        terminal.say("These values occur in the goal. An input can have another value in each run.")
    inputs: list[ProposedInput] = []
    for entry in proposed:
        value, step = one_line(str(entry.value), 80), one_line(entry.step_id, 64)
        typed = terminal.ask(f"Make {entry.name} of step {step}, now {value}, an input? [Enter yes · n no] ")
        inputs += [entry] if typed is not None and typed.lower() not in NO else []
    return inputs


def draw_catalogue(terminal: Terminal, home: Home, catalogue: PlanCatalogue) -> None:
    if not catalogue.plans:
        folder = home.settings.home / PLAN_FOLDER
        terminal.line((f"No saved plans; they are files NAME.yaml or NAME.json in {folder}.", "dim"))
    width = max((len(plan.name) for plan in catalogue.plans), default=0)
    for plan in catalogue.plans:
        source = "" if plan.source == HOME else f"  from {one_line(plan.source, 60)}"
        title = f"  {one_line(plan.title or '', 100)}" if plan.title else ""
        terminal.line((plan.name.ljust(width), "bold"), title, (source, "dim"), mark="done")
        fields = [*build_fields(plan.inputs)]
        if fields:
            terminal.line((f"takes {', '.join(map(_describe_field, fields))}", "dim"), indent=1)
    for fault in catalogue.faults:
        text = f"{fault.path}: {fault.reason}"
        terminal.line((one_line(text, 300), "warn"), mark="failed")
    for hidden in catalogue.hidden:
        text = f"{hidden.path} is not used: {hidden.by} has its name"
        terminal.line((one_line(text, 300), "warn"), mark="note")


def draw_plan(terminal: Terminal, home: Home, plan: SavedPlan) -> None:
    terminal.line((plan.name, "bold"), f"  {one_line(plan.title or '', 200)}")
    if plan.description:
        terminal.say(*(TerminalLine(escape_text(line), indent=1) for line in plan.description.split("\n")))
    terminal.line((f"version {plan.digest[:VERSION_CHARS]} · {escape_text(str(plan.path))}", "dim"))
    for field in build_fields(plan.inputs):
        about = (f"  {one_line(field.description, 160)}", "dim")
        terminal.line(("input ", "dim"), _describe_field(field), about, indent=1)
    for step in plan.steps:
        name, text = one_line(str(step["id"]), 64), one_line(str(step["description"]), 160)
        tools = ", ".join(one_line(tool, 64) for tool in sorted(read_tool_names({"todoList": [step]})))
        terminal.line((name, "bold"), f"  {text}", (f"  {tools}", "dim"), mark="waits")
    terminal.line((home.command("run", plan.name), "dim"))


def _describe_field(field: Field) -> str:
    text, kind = one_line(field.name, 64), field.schema.get("type")
    if kind is not None and not isinstance(kind, list):
        text = f"{text}: {one_line(str(kind), 20)}"
    if "default" in field.schema:
        return f"{text} = {one_line(msgspec.json.encode(field.schema['default']).decode(), 60)}"
    return text if field.must_be_given else f"{text} (optional)"


def _summarize(plan: SavedPlan) -> dict[str, JsonValue]:
    return {
        "name": plan.name,
        "title": plan.title,
        "description": plan.description,
        "inputs": plan.inputs,
        "version": plan.digest,
        "source": plan.source,
    }


def forecast_lines(forecast: Forecast) -> Iterator[TerminalLine]:
    """Yield the steps in order with what is known about each step, then the warnings, then the graph."""
    for step in forecast.steps:
        yield from _step_lines(step, forecast)
    for warning in forecast.warnings:
        yield TerminalLine((one_line(warning, 500), "warn"), mark="note")
    if forecast.unseen:
        yield TerminalLine((f"Not looked at: {count_of(forecast.unseen, 'more call')}", "warn"), mark="note")
    yield TerminalLine()
    yield from (TerminalLine((line, "dim")) for line in (forecast.graph or "").splitlines())


def _step_lines(step: ForecastStep, forecast: Forecast) -> Iterator[TerminalLine]:
    after = (f"  after {join_names(step.after)}" if step.after else "", "dim")
    is_asking = any(asking.step_id == step.id for asking in forecast.asks)
    mark = "skipped" if step.skipped_because else "asks" if is_asking else "waits"
    yield TerminalLine((escape_text(step.id), "bold"), "  ", join_names(step.tools) or "text", after, mark=mark)
    yield from (TerminalLine(fact, indent=1) for fact in forecast.describe_step(step))
