"""The command `tools`: lists the servers and the tools that a plan may name, and shows the details of one tool."""

from argparse import Namespace
from collections.abc import Sequence

from planwarden.server.api.home import Home
from planwarden.server.api.limits import MAX_PAGE
from planwarden.server.api.service import Service
from planwarden.server.api.tools import search_tools
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.home import open_home
from planwarden.server.cli.terminal.lines import Style, TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal, write_result
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import ValueView, escape_text, format_value
from planwarden.server.views.fields import Field, build_fields
from planwarden.server.views.status_words import Mark
from planwarden.server.views.tools import ToolPage, ToolView, build_tool_view
from planwarden.tools.downstream.servers import ServerHealth

_RISKS: dict[str, Style] = {"read": "good", "confirm": "warn", "dangerous": "bad", "critical": "bad"}

_EFFECTS = {
    "read": "effect read: after a crash it is called again",
    "idempotent": "effect idempotent: after a crash it is called again, with the same key",
    "effect": "has an effect: after a crash it is not called again unasked",
}


def add_tools(parser: CommandParser) -> None:
    parser.handle(handle_tools, uses_servers=True)
    text = (
        "words to search for; best matches first. If QUERY is exactly a tool's name, "
        "its arguments and schemas are shown too"
    )
    parser.declare("query QUERY", text, nargs="*")
    parser.declare("--limit N", "number of tools, at most 100", type=int)
    parser.declare("--cursor CURSOR", "continue after the page that printed this cursor")


def handle_tools(arguments: Namespace) -> int:
    query = " ".join(arguments.query) or None
    home = open_home(arguments)
    home.check()
    servers = list_servers(home)
    page = search_tools(home.tools, query, limit=arguments.limit or MAX_PAGE, cursor=arguments.cursor)
    tool = home.tools.get(query or "")
    view = None if tool is None else build_tool_view(tool)
    document = to_json(page)
    if view is not None:
        document["definition"] = to_json(view)
    if servers:
        document["servers"] = [to_json(server) for server in servers]

    def draw(terminal: Terminal) -> None:
        draw_tools(terminal, page)
        if view is not None:
            draw_definition(terminal, view)
        draw_servers(terminal, servers)

    return write_result(arguments, document, draw)


def list_servers(home: Home) -> tuple[ServerHealth, ...]:
    """Start the servers whose tools were never listed, and return the health of every downstream server."""

    async def work(service: Service) -> tuple[ServerHealth, ...]:
        await service.wait_for_catalogue()
        return home.downstream.health()

    return home.run(work, "checker") if home.downstream.never_listed_servers else home.downstream.health()


def draw_tools(terminal: Terminal, page: ToolPage) -> None:
    """Draw the name, risk and description of each tool; for a tool that is not available, also the reason."""
    if not page.tools:
        terminal.say("No tool fits.")
    width = max((len(tool.name) for tool in page.tools), default=0)
    for tool in page.tools:
        facts = " · ".join([tool.execution_mode, tool.source, *tool.capabilities])
        is_off = tool.unavailable is not None
        name = one_line(tool.name, 64).ljust(min(width, 28))
        terminal.line(
            (name, "dim" if is_off else "bold"),
            "  ",
            (tool.risk.ljust(9), _RISKS[tool.risk]),
            "  ",
            (one_line(facts, 100), "dim"),
            mark="skipped" if is_off else "done",
        )
        terminal.line(one_line(tool.description, 200), indent=1)
        if tool.unavailable is not None:
            terminal.line((f"not available: {one_line(tool.unavailable, 300)}", "warn"), indent=1)
    if page.next_cursor is not None:
        terminal.line((f"more: --cursor {page.next_cursor}", "dim"))


def draw_definition(terminal: Terminal, view: ToolView) -> None:
    """Draw whom a tool asks, its effect, description and arguments, and the schemas of its arguments and its result."""
    terminal.say("", TerminalLine((one_line(view.name, 64), "bold"), (f"  {view.asks}", "dim")))
    terminal.line((_EFFECTS[view.effect], "dim"), indent=1)
    terminal.say(*(TerminalLine(escape_text(line), indent=1) for line in view.description.splitlines()))
    if fields := build_fields(view.input_schema):
        terminal.say(TerminalLine(("arguments", "bold")), *map(_build_argument_line, fields))
    for title, schema in (("schema of its arguments", view.input_schema), ("schema of its result", view.output_schema)):
        if schema is not None:
            terminal.line((title, "bold"))
            terminal.say(*(TerminalLine((line, "dim")) for line in ValueView(schema).lines))


def _build_argument_line(field: Field) -> TerminalLine:
    facts, need = field.schema, "needed" if field.is_required else "optional"
    kind = facts.get("type", "any")
    kinds = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
    default = f", default {format_value(facts['default'])}" if "default" in facts else ""
    about = f"  {one_line(str(facts['description']), 300)}" if "description" in facts else ""
    name_part = (one_line(field.name, 64), "bold")
    return TerminalLine(name_part, (f"  {one_line(kinds, 64)}, {need}{default}", "dim"), about, indent=1)


def draw_servers(terminal: Terminal, servers: Sequence[ServerHealth]) -> None:
    for server in servers:
        mark: Mark = "failed" if server.health == "down" else "skipped" if server.health == "disabled" else "done"
        state = "not started; the first call starts it" if server.health == "idle" else server.health
        facts = f"server, {server.tools} tools, {state}{', trusted' if server.trusted else ''}"
        terminal.line((one_line(server.name, 64), "bold"), "  ", (facts, "dim"), mark=mark)
        if server.reason is not None:
            terminal.line((one_line(server.reason, 300), "warn"), indent=1)
