"""The command `tools`: what a plan may name, one line each."""

from collections.abc import Sequence

import anyio
from pydantic import JsonValue

from planwarden.server.api.service import MAX_PAGE
from planwarden.server.cli.home import CliHome
from planwarden.server.cli.terminal.lines import Mark, Style, TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.tools import ToolPage
from planwarden.tools.downstream.health import ServerHealth

_RISKS: dict[str, Style] = {"read": "good", "confirm": "warn", "dangerous": "bad", "critical": "bad"}


def list_tools(
    home: CliHome, query: str | None, *, limit: int | None, cursor: str | None
) -> tuple[ToolPage, tuple[ServerHealth, ...]]:
    """Best matches first, everything by name without a query; and how the downstream servers are doing.

    Servers that were never listed are started for it.
    """
    servers = anyio.run(home.listed) if home.downstream.never_listed_servers else home.downstream.health()
    return home.service().search_tools(query, limit=limit or MAX_PAGE, cursor=cursor), servers


def draw_tools(terminal: Terminal, page: ToolPage) -> None:
    """Name, risk and purpose of each; why it cannot be called, if it cannot."""
    width = max((len(found.name) for found in page.tools), default=0)
    for found in page.tools:
        facts = " · ".join([found.execution_mode, found.source, *found.capabilities])
        is_off = found.unavailable is not None
        name = one_line(found.name, 64).ljust(min(width, 28))
        risk = found.risk.ljust(9)
        terminal.say(
            TerminalLine(
                (
                    (name, "dim" if is_off else "bold"),
                    "  ",
                    (risk, _RISKS[found.risk]),
                    "  ",
                    (one_line(facts, 100), "dim"),
                ),
                "skipped" if is_off else "done",
            ),
            TerminalLine((one_line(found.description, 200),), indent=1),
        )
        if found.unavailable is not None:
            terminal.say(TerminalLine(((f"not available: {one_line(found.unavailable, 300)}", "warn"),), indent=1))
    if page.next_cursor is not None:
        terminal.say(TerminalLine(((f"more: --cursor {page.next_cursor}", "dim"),)))


def draw_servers(terminal: Terminal, servers: Sequence[ServerHealth]) -> None:
    """One line for each downstream server."""
    for found in servers:
        mark: Mark = "failed" if found.health == "down" else "skipped" if found.health == "disabled" else "done"
        state = "not started; the first call starts it" if found.health == "idle" else found.health
        facts = f"server, {found.tools} tools, {state}{', trusted' if found.trusted else ''}"
        terminal.say(TerminalLine(((one_line(found.name, 64), "bold"), "  ", (facts, "dim")), mark))
        if found.reason is not None:
            terminal.say(TerminalLine(((one_line(found.reason, 300), "warn"),), indent=1))


def servers_json(servers: Sequence[ServerHealth]) -> list[JsonValue]:
    """The same as JSON."""
    return [
        {
            "name": found.name,
            "health": found.health,
            "tools": found.tools,
            "trusted": found.trusted,
            "reason": found.reason,
            "log": found.log,
        }
        for found in servers
    ]
