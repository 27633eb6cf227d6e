"""The commands `plans`, `plans show` and `plans keep`: plans that people keep in files."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pydantic import JsonValue

from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan_parser import read_tool_names
from planwarden.agent.ports.store import Lookups
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.server.api.home import Home
from planwarden.server.cli.arguments import add_plan_arguments, open_home
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.commands.check import handle_check, handle_graph
from planwarden.server.cli.output import DONE, build_terminal, print_json, write_result
from planwarden.server.cli.plan_source import find_saved_plan
from planwarden.server.cli.terminal.lines import Part, TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.plans.folders import HOME, PlanCatalogue
from planwarden.server.plans.keeping import (
    ProposedInput,
    build_document,
    check_keepable,
    check_new_name,
    propose_inputs,
    suggest_title,
    write_plan,
)
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.settings.configuration import PLAN_FOLDER
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.fields import Field, build_fields
from planwarden.server.views.status_text import VERSION_CHARS

NO = ("n", "no")


def add_plans(parser: CommandParser) -> None:
    parser.handle(handle_list)
    commands = parser.add_commands("show|check|graph|keep", required=False)
    show = commands.add("show", handle_show, "Show a saved plan: what it takes, and its steps.")
    show.add_argument("name", metavar="NAME", help="name of the plan")
    for name, handler, text in (
        ("check", handle_check, "Check a plan as `planwarden check` does. Nothing runs."),
        ("graph", handle_graph, "Print the graph of a plan as Mermaid text. Nothing runs."),
    ):
        add_plan_arguments(commands.add(name, handler, text, uses_servers=True))
    text = "Make a saved plan of a finished run; values of its goal become inputs."
    keep = commands.add("keep", handle_keep, text)
    keep.add_argument("thread", metavar="THREAD", help="its threadId, or the beginning of one")
    keep.add_argument("name", metavar="NAME", help="name of the new plan: letters, digits, - and _, at most 64")


def handle_list(arguments: Namespace) -> int:
    home = open_home(arguments)
    plans = home.library.look_now()
    document: dict[str, JsonValue] = {
        "plans": [_to_json(plan) for plan in plans.plans],
        "unusable": [{"name": fault.name, "file": str(fault.path), "reason": fault.reason} for fault in plans.faults],
        "hidden": [{"name": entry.name, "file": str(entry.path), "by": str(entry.by)} for entry in plans.hidden],
    }
    write_result(arguments, document, lambda terminal: draw_catalogue(terminal, home, plans))
    return DONE


def handle_show(arguments: Namespace) -> int:
    home = open_home(arguments)
    plan = find_saved_plan(home, arguments.name)
    document: dict[str, JsonValue] = {**_to_json(plan), "file": str(plan.path), "plan": plan.document}
    write_result(arguments, document, lambda terminal: draw_plan(terminal, home, plan))
    return DONE


def handle_keep(arguments: Namespace) -> int:
    home = open_home(arguments)
    terminal = build_terminal(arguments)
    name: str = arguments.name
    check_new_name(home.library.look_now(), name)

    async def find_execution(store: Lookups) -> ExecutionState:
        headers = await home.find_thread(store, arguments.thread, f"`{home.command('list')}` shows the newest ones")
        return await load_execution(store, headers[-1])

    execution = home.read(find_execution)
    plan = check_keepable(execution)
    parameters = choose_inputs(terminal, propose_inputs(plan, execution.goal))
    document = build_document(plan, suggest_title(execution.goal), execution.inputs, parameters)
    comment = f"Kept by `planwarden plans keep` from thread {execution.thread_id}."
    path = write_plan(home.settings.home / PLAN_FOLDER, name, document, comment)
    inputs = [field.name for field in build_fields(_as_object(document.get("inputs")))]
    draw_kept(terminal, home, path, name, inputs)
    if arguments.json:
        print_json({"name": name, "file": str(path), "inputs": list[JsonValue](inputs)})
    return DONE


def choose_inputs(terminal: Terminal, proposed: Sequence[ProposedInput]) -> list[ProposedInput]:
    """Return those that the person wants as inputs; all of them where nobody can be asked."""
    if not terminal.can_ask:
        return list(proposed)
    if proposed:
        terminal.say("These values occur in the goal. An input can have another value in each run.")
    return [entry for entry in proposed if _is_wanted(terminal, entry)]


def _is_wanted(terminal: Terminal, proposed: ProposedInput) -> bool:
    value, step = one_line(str(proposed.value), 80), one_line(proposed.step_id, 64)
    typed = terminal.ask(f"Make {proposed.name} of step {step}, now {value}, an input? [Enter yes · n no] ")
    return typed is not None and typed.lower() not in NO


def draw_catalogue(terminal: Terminal, home: Home, catalogue: PlanCatalogue) -> None:
    if not catalogue.plans:
        folder = home.settings.home / PLAN_FOLDER
        terminal.say(TerminalLine(((f"No saved plans; they are files NAME.yaml or NAME.json in {folder}.", "dim"),)))
    width = max((len(plan.name) for plan in catalogue.plans), default=0)
    for plan in catalogue.plans:
        source = "" if plan.source == HOME else f"  from {one_line(plan.source, 60)}"
        title = f"  {one_line(plan.title or '', 100)}" if plan.title else ""
        terminal.say(TerminalLine(((plan.name.ljust(width), "bold"), title, (source, "dim")), "done"))
        fields = [*build_fields(plan.inputs)]
        if fields:
            terminal.say(TerminalLine(((f"takes {', '.join(map(_describe_field, fields))}", "dim"),), indent=1))
    for fault in catalogue.faults:
        text = f"{fault.path}: {fault.reason}"
        terminal.say(TerminalLine(((one_line(text, 300), "warn"),), "failed"))
    for hidden in catalogue.hidden:
        text = f"{hidden.path} is not used: {hidden.by} has its name"
        terminal.say(TerminalLine(((one_line(text, 300), "warn"),), "note"))


def draw_plan(terminal: Terminal, home: Home, plan: SavedPlan) -> None:
    terminal.say(TerminalLine(((plan.name, "bold"), f"  {one_line(plan.title or '', 200)}")))
    if plan.description:
        terminal.say(*(escape_text(line) for line in plan.description.splitlines()))
    version = f"version {plan.digest[:VERSION_CHARS]} · {escape_text(str(plan.path))}"
    terminal.say(TerminalLine(((version, "dim"),)))
    for field in build_fields(plan.inputs):
        parts: tuple[Part, ...] = (
            ("input ", "dim"),
            _describe_field(field),
            (f"  {one_line(field.description, 160)}", "dim"),
        )
        terminal.say(TerminalLine(parts, indent=1))
    steps = plan.document.get("todoList", plan.document.get("steps"))
    for step in steps if isinstance(steps, list) else ():
        fields = step if isinstance(step, dict) else {}
        name, text = one_line(str(fields.get("id")), 64), one_line(str(fields.get("description")), 160)
        tools = ", ".join(one_line(tool, 64) for tool in sorted(read_tool_names({"todoList": [fields]})))
        terminal.say(TerminalLine(((name, "bold"), f"  {text}", (f"  {tools}", "dim")), "waits"))
    terminal.say(TerminalLine(((home.command("run", plan.name), "dim"),)))


def draw_kept(terminal: Terminal, home: Home, path: Path, name: str, inputs: Sequence[str]) -> None:
    takes = f"; it takes {', '.join(map(escape_text, inputs))}" if inputs else ""
    terminal.say(TerminalLine((f"{path}: written{takes}",), "done"))
    terminal.say(TerminalLine(((home.command("run", name), "dim"),)))


def _describe_field(field: Field) -> str:
    kind = field.schema.get("type")
    text = (
        f"{one_line(field.name, 64)}{'' if isinstance(kind, list) or kind is None else f': {one_line(str(kind), 20)}'}"
    )
    if "default" in field.schema:
        return f"{text} = {one_line(msgspec.json.encode(field.schema['default']).decode(), 60)}"
    return text if field.must_be_given else f"{text} (optional)"


def _to_json(plan: SavedPlan) -> dict[str, JsonValue]:
    return {
        "name": plan.name,
        "title": plan.title,
        "description": plan.description,
        "inputs": plan.inputs,
        "version": plan.digest,
        "source": plan.source,
    }


def _as_object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}
