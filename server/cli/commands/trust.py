"""The command `trust`: lets tools of a downstream server run without asking, if the server says that they only read.

A person confirms the list of tools, or gives --yes. For each tool, the command writes `risk`, and `effect` if that is
missing, into `planwarden.toml`, where the operator sees both. If the server does not call a tool read-only, the command
never lowers the tool's risk, even if the command line names the tool: only the operator can, by editing the file.

The new text of the file is parsed before it is written: it must have the old settings plus the additions. If adding
lines cannot achieve that, for example in an inline table, nothing is changed, and the person is told what to add.
"""

import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.api.home import Home
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.home import open_home
from planwarden.server.cli.hosts import quote, replace_text
from planwarden.server.cli.output import DONE, FAILED, print_json
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal
from planwarden.server.guard.json_text import read_text
from planwarden.server.settings.configuration import SETTINGS_FILE, Settings
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.listing import find_possible_names, says_it_only_reads
from planwarden.tools.downstream.servers import REASON_S

MAX_LISTED = 100
BYTE_ORDER_MARK = "\ufeff"
"""The mark with which some editors on Windows begin a file; TOML does not know it."""
Additions = Mapping[str, Mapping[str, str]]
"""For each tool, by its name: the keys to add to its table, with their values."""


def add_trust(parser: CommandParser) -> None:
    parser.handle(handle_trust, uses_servers=True)
    parser.declare("server SERVER", "name of the server in planwarden.json")
    parser.declare("tools TOOL", "only these tools, as planwarden or the server calls them; default: all", nargs="*")
    parser.declare("--yes", "do not ask before writing; needed without a terminal")


def handle_trust(arguments: Namespace) -> int:
    home, terminal = open_home(arguments), build_terminal(arguments)
    config = home.downstream.find_config(arguments.server)
    definitions = anyio.run(_list_tools, home, config)
    allowed = _choose_tools(home.settings, config, definitions, arguments.tools)
    names = [definition.name for definition in allowed]
    asking = [tool.name for tool in definitions if tool.risk != "read" and tool.name not in names]
    draw_choice(terminal, config, allowed, asking)
    path = home.settings.home / SETTINGS_FILE
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
        question = "Let plans call them without asking anybody?"
        if not terminal.confirm(question, "Nothing was written.", says_yes=arguments.yes):
            return FAILED
        replace_text(path, before, after)
        terminal.say(f"{path}: written. Processes that are running read it when they start again.")
    if arguments.json:
        print_json({"server": config.name, "allowed": list[JsonValue](names), "file": str(path)})
    return DONE


async def _list_tools(home: Home, config: ServerConfig) -> tuple[ToolDefinition, ...]:
    """Start the server, and return the tools that it lists now. Raise `UsageError` if the server cannot be used."""
    if not config.can_start:
        raise UsageError(f"server {config.name!r} cannot be used: {config.problem or 'it is disabled'}")
    async with home.downstream as downstream:
        await downstream.connection(config.name).connect(config.settings.start_timeout_s + REASON_S)
        return tuple(definition for definition in home.tools.definitions() if definition.source == config.name)


def _choose_tools(
    settings: Settings, config: ServerConfig, definitions: Sequence[ToolDefinition], names: Sequence[str]
) -> list[ToolDefinition]:
    """Return the tools to allow: tools in `names` (empty for all) that ask now, while their server says that they only
    read. Raise `UsageError` for a tool in `names` that is unknown or must not be allowed.
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
        return None if entry.risk == "read" else f'has risk = "{entry.risk}" in {SETTINGS_FILE}, which only you change'
    if not says_it_only_reads(definition):
        return (
            "does not say that it only reads, so trust does not lower its risk; if you know better, write "
            f'[tools."{definition.name}"] into {SETTINGS_FILE}'
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


def format_additions(additions: Additions) -> str:
    """Return the additions as TOML tables."""
    tables = (
        "\n".join([f"[tools.{quote(name)}]", *(f"{key} = {quote(value)}" for key, value in keys.items())])
        for name, keys in additions.items()
    )
    return "\n\n".join(tables) + "\n"


def add_to_text(text: str, additions: Additions, comment: str) -> str:
    """Return the text with the additions: below the header of a tool's table, or at the end if there is no such table.

    Raises:
        UsageError: the text is such that no lines can be added; the message shows what the person has to add.
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + add_to_text(text.removeprefix(BYTE_ORDER_MARK), additions, comment)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines, remaining = text.splitlines(keepends=True), dict(additions)
    for index, name in reversed([*_find_tables(lines, additions)]):
        keys = remaining.pop(name, {})
        lines[index] = lines[index].rstrip("\r\n") + newline
        lines[index + 1 : index + 1] = [f"{key} = {quote(value)}{newline}" for key, value in keys.items()]
    changed = "".join(lines)
    if remaining:
        gap = "" if not changed else newline if changed.endswith("\n") else newline * 2
        changed += gap + f"# {comment}{newline}" + format_additions(remaining).replace("\n", newline)
    expected = tomllib.loads(text)
    try:
        for name, keys in additions.items():
            expected.setdefault("tools", {}).setdefault(name, {}).update(keys)
        is_right = tomllib.loads(changed) == expected
    except (tomllib.TOMLDecodeError, AttributeError):
        is_right = False
    if not is_right:
        raise UsageError(
            "lines cannot be added to planwarden.toml the way it is written; nothing was changed. Add these yourself:\n"
            + format_additions(additions).rstrip()
        )
    return changed


def _find_tables(lines: list[str], additions: Additions) -> Iterator[tuple[int, str]]:
    """Yield the index of each line that begins the table of one of the tools, with the tool's name."""
    for index, line in enumerate(lines):
        if line.lstrip().startswith("["):
            # A line of a multi-line string may look like a header; the check in `add_to_text` notices that.
            with suppress(tomllib.TOMLDecodeError):
                header = tomllib.loads(line)
                yield from ((index, name) for name in additions if header == {"tools": {name: {}}})


def draw_choice(
    terminal: Terminal, config: ServerConfig, allowed: Sequence[ToolDefinition], asking: Sequence[str]
) -> None:
    server = one_line(config.name, 64)
    if allowed:
        terminal.line((f"Server {server} says that these tools only read:", "bold"))
    else:
        text = f"Server {server} has no tool that asks although the server says that it only reads"
        terminal.say(f"{text}; nothing was written.")
    for definition in allowed[:MAX_LISTED]:
        terminal.line(definition.name, (f"  {one_line(definition.description, 100)}", "dim"), mark="done")
    if len(allowed) > MAX_LISTED:
        terminal.say(f"and {len(allowed) - MAX_LISTED} more, see below")
    if asking:
        more = " …" if len(asking) > MAX_LISTED else ""
        terminal.line((f"Calls of these still ask: {', '.join(asking[:MAX_LISTED])}{more}", "dim"))
