"""The command `tools`, which shows what plans may name, and `trust`, which lets tools of a server run without asking.

A person confirms which tools `trust` means: those that, as their server says, only read. It writes `risk` and `effect`
of each into `planwarden.toml`, where the operator sees them. A tool that may change something is never among them, even
when it is named: only the operator writes its risk.
"""

import json
from argparse import Namespace
from collections.abc import Sequence

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.api.home import Home
from planwarden.server.api.limits import MAX_PAGE
from planwarden.server.api.service import Service
from planwarden.server.api.tools import search_tools
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import DONE, FAILED, print_json
from planwarden.server.cli.terminal.lines import Style, TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, confirm
from planwarden.server.settings.additions import Additions, add_to_text, format_additions, read_text, replace_text
from planwarden.server.settings.configuration import FILE, Settings
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, format_value
from planwarden.server.views.status_words import Mark
from planwarden.server.views.tools import ToolPage, ToolView, build_tool_view
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.servers import REASON_S, ServerHealth
from planwarden.tools.downstream.tools import find_possible_names, says_it_only_reads

_RISKS: dict[str, Style] = {"read": "good", "confirm": "warn", "dangerous": "bad", "critical": "bad"}
MAX_LISTED = 100


def add_tools(parser: CommandParser) -> None:
    parser.handle(handle_tools, uses_servers=True)
    text = "words to search for; best matches first. The name of a tool also shows its arguments and schemas"
    parser.add_argument("query", nargs="*", metavar="QUERY", help=text)
    parser.add_argument("--limit", type=int, metavar="N", help="number of tools, at most 100")
    parser.add_argument("--cursor", help="continue after the page that printed this cursor")


def handle_tools(arguments: Namespace) -> int:
    query = " ".join(arguments.query) or None
    home = open_home(arguments)
    home.check()
    servers = list_servers(home)
    page = search_tools(home.tools, query, limit=arguments.limit or MAX_PAGE, cursor=arguments.cursor)
    tool = home.tools.get(query or "")
    view = None if tool is None else build_tool_view(tool)
    if arguments.json:
        document = to_json(page)
        if view is not None:
            document["definition"] = to_json(view)
        if servers:
            document["servers"] = [to_json(server) for server in servers]
        print_json(document)
        return DONE
    terminal = build_terminal(arguments)
    draw_tools(terminal, page)
    if view is not None:
        draw_definition(terminal, view)
    draw_servers(terminal, servers)
    return DONE


def list_servers(home: Home) -> tuple[ServerHealth, ...]:
    """Start the servers whose tools were never listed, and return the health of every downstream server."""

    async def work(service: Service) -> tuple[ServerHealth, ...]:
        await service.wait_for_catalogue()
        return home.downstream.health()

    return home.run(work, "checker") if home.downstream.never_listed_servers else home.downstream.health()


def draw_tools(terminal: Terminal, page: ToolPage) -> None:
    """Draw the name, risk and purpose of each tool, and why it is not available, if it is not."""
    if not page.tools:
        terminal.say("No tool fits.")
    width = max((len(tool.name) for tool in page.tools), default=0)
    for tool in page.tools:
        facts = " · ".join([tool.execution_mode, tool.source, *tool.capabilities])
        is_off = tool.unavailable is not None
        name = one_line(tool.name, 64).ljust(min(width, 28))
        terminal.say(
            TerminalLine(
                (name, "dim" if is_off else "bold"),
                "  ",
                (tool.risk.ljust(9), _RISKS[tool.risk]),
                "  ",
                (one_line(facts, 100), "dim"),
                mark="skipped" if is_off else "done",
            ),
            TerminalLine(one_line(tool.description, 200), indent=1),
        )
        if tool.unavailable is not None:
            terminal.say(TerminalLine((f"not available: {one_line(tool.unavailable, 300)}", "warn"), indent=1))
    if page.next_cursor is not None:
        terminal.say(TerminalLine((f"more: --cursor {page.next_cursor}", "dim")))


def draw_definition(terminal: Terminal, view: ToolView) -> None:
    """Draw all that a tool says of itself: its description, its arguments, and the schemas of these and its result."""
    terminal.say("", TerminalLine((one_line(view.name, 64), "bold"), (f"  effect {view.effect}", "dim")))
    terminal.say(*(TerminalLine(escape_text(line), indent=1) for line in view.description.splitlines()))
    properties, required = view.input_schema.get("properties"), view.input_schema.get("required")
    if isinstance(properties, dict) and properties:
        terminal.say(TerminalLine(("arguments", "bold")))
        for name, schema in properties.items():
            need = "needed" if isinstance(required, list) and name in required else "optional"
            terminal.say(_build_argument_line(name, schema, need))
    for title, schema in (("schema of its arguments", view.input_schema), ("schema of its result", view.output_schema)):
        if schema is not None:
            terminal.say(TerminalLine((title, "bold")))
            text = json.dumps(schema, indent=2, ensure_ascii=False)
            terminal.say(*(TerminalLine((escape_text(line), "dim")) for line in text.splitlines()))


def _build_argument_line(name: str, schema: JsonValue, need: str) -> TerminalLine:
    facts = schema if isinstance(schema, dict) else {}
    kind = facts.get("type", "any")
    kinds = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
    default = f", default {format_value(facts['default'])}" if "default" in facts else ""
    about = f"  {one_line(str(facts['description']), 300)}" if "description" in facts else ""
    name_part = (one_line(name, 64), "bold")
    return TerminalLine(name_part, (f"  {one_line(kinds, 64)}, {need}{default}", "dim"), about, indent=1)


def draw_servers(terminal: Terminal, servers: Sequence[ServerHealth]) -> None:
    for server in servers:
        mark: Mark = "failed" if server.health == "down" else "skipped" if server.health == "disabled" else "done"
        state = "not started; the first call starts it" if server.health == "idle" else server.health
        facts = f"server, {server.tools} tools, {state}{', trusted' if server.trusted else ''}"
        terminal.say(TerminalLine((one_line(server.name, 64), "bold"), "  ", (facts, "dim"), mark=mark))
        if server.reason is not None:
            terminal.say(TerminalLine((one_line(server.reason, 300), "warn"), indent=1))


def add_trust(parser: CommandParser) -> None:
    parser.handle(handle_trust, uses_servers=True)
    parser.add_argument("server", metavar="SERVER", help="name of the server in planwarden.json")
    text = "only these tools, as planwarden or the server calls them; default: all"
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=text)
    parser.add_argument("--yes", action="store_true", help="do not ask before writing; needed without a terminal")


def handle_trust(arguments: Namespace) -> int:
    home, terminal = open_home(arguments), build_terminal(arguments)
    config = home.downstream.find_config(arguments.server)
    definitions = anyio.run(_list_tools, home, config)
    allowed = _choose_tools(home.settings, config, definitions, arguments.tools)
    names = [definition.name for definition in allowed]
    asking = [tool.name for tool in definitions if tool.risk != "read" and tool.name not in names]
    draw_choice(terminal, config, allowed, asking)
    path = home.settings.home / FILE
    if allowed:
        entries = {name: home.settings.tools.get(name) for name in names}
        additions: Additions = {
            name: {"risk": "read"} if entry is not None and entry.effect else {"risk": "read", "effect": "read"}
            for name, entry in entries.items()
        }
        comment = f"planwarden trust: server {one_line(config.name, 64)} says that these only read."
        before = read_text(path)
        after = add_to_text(before, additions, comment)
        lines = format_additions(additions).split("\n")
        terminal.say(f"{path} gets:", *(TerminalLine(line, indent=1) for line in lines))
        if not confirm(terminal, "Let plans call them without asking anybody?", says_yes=arguments.yes):
            terminal.say("Nothing was written.")
            return FAILED
        try:
            replace_text(path, before, after)
        except OSError as error:
            raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
        terminal.say(f"{path}: written. Processes that run already read it when they start again.")
    if arguments.json:
        print_json({"server": config.name, "allowed": list[JsonValue](names), "file": str(path)})
    return DONE


async def _list_tools(home: Home, config: ServerConfig) -> tuple[ToolDefinition, ...]:
    """Start the server and return its tools as it lists them now."""
    if not config.can_start:
        raise UsageError(f"server {config.name!r} cannot be used: {config.problem or 'it is disabled'}")
    async with home.downstream as downstream:
        await downstream.connection(config.name).connect(config.settings.start_timeout_s + REASON_S)
        return tuple(definition for definition in home.tools.definitions() if definition.source == config.name)


def _choose_tools(
    settings: Settings, config: ServerConfig, definitions: Sequence[ToolDefinition], names: Sequence[str]
) -> list[ToolDefinition]:
    """Return what may be allowed among the named tools, or among all: they ask now, and their server says that they
    only read. Raise `UsageError` for a named tool that is not among them.
    """
    selection = [_find_tool(config, definitions, name) for name in names] if names else list(definitions)
    allowed: dict[str, ToolDefinition] = {}
    for definition in selection:
        problem = _find_problem(settings, definition)
        if definition.risk != "read" and problem is None:
            allowed[definition.name] = definition
        elif names and problem is not None:
            raise UsageError(f"{definition.name!r} {problem}; nothing was written")
    return list(allowed.values())


def _find_problem(settings: Settings, definition: ToolDefinition) -> str | None:
    entry = settings.tools.get(definition.name)
    if entry is not None and entry.risk is not None:
        return None if entry.risk == "read" else f'has risk = "{entry.risk}" in {FILE}, which only you change'
    if not says_it_only_reads(definition):
        return (
            "does not say that it only reads, so trust does not lower it; if you know better, write "
            f'[tools."{definition.name}"] into {FILE}'
        )
    return None


def _find_tool(config: ServerConfig, definitions: Sequence[ToolDefinition], name: str) -> ToolDefinition:
    table = {definition.name: definition for definition in definitions}
    for possible in find_possible_names(config.slug, name):
        if possible in table:
            return table[possible]
    plain = [text.removeprefix(f"{config.slug}_") for text in table]
    hint = did_you_mean(name, [*table, *plain])
    raise UsageError(
        f"server {config.name!r} has no tool {name[:128]!r}{hint}; it has {', '.join(plain[:40]) or 'none'}"
    )


def draw_choice(
    terminal: Terminal, config: ServerConfig, allowed: Sequence[ToolDefinition], asking: Sequence[str]
) -> None:
    server = one_line(config.name, 64)
    if allowed:
        terminal.say(TerminalLine((f"Server {server} says that these tools only read:", "bold")))
    else:
        text = f"There is no tool of server {server} that asks and, as the server says, only reads"
        terminal.say(f"{text}; nothing was written.")
    for definition in allowed[:MAX_LISTED]:
        terminal.say(TerminalLine(definition.name, (f"  {one_line(definition.description, 100)}", "dim"), mark="done"))
    if len(allowed) > MAX_LISTED:
        terminal.say(f"and {len(allowed) - MAX_LISTED} more, see below")
    if asking:
        more = " …" if len(asking) > MAX_LISTED else ""
        terminal.say(TerminalLine((f"Calls of these go on asking: {', '.join(asking[:MAX_LISTED])}{more}", "dim")))
