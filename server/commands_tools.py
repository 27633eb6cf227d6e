"""The command `tools`: what a plan may name, one line each."""

from planwarden.server import views
from planwarden.server.commands_home import Home
from planwarden.server.service import MAX_PAGE
from planwarden.server.terminal import Terminal
from planwarden.server.terminal_lines import Line, Style, one_line

_RISKS: dict[str, Style] = {"read": "good", "confirm": "warn", "dangerous": "bad", "critical": "bad"}


def list_tools(home: Home, query: str | None, *, limit: int | None, cursor: str | None) -> views.ToolPage:
    """Best matches first; everything by name without a query."""
    service = home.service()
    return service.search_tools(query, limit=limit or MAX_PAGE, cursor=cursor)


def draw_tools(terminal: Terminal, page: views.ToolPage) -> None:
    """Name, risk and purpose of each; why it cannot be called, if it cannot."""
    width = max((len(found.name) for found in page.tools), default=0)
    for found in page.tools:
        facts = " · ".join([found.execution_mode, found.source, *found.capabilities])
        is_off = found.unavailable is not None
        name = one_line(found.name, 64).ljust(min(width, 28))
        risk = found.risk.ljust(9)
        terminal.say(
            Line(
                (
                    (name, "dim" if is_off else "bold"),
                    "  ",
                    (risk, _RISKS[found.risk]),
                    "  ",
                    (one_line(facts, 100), "dim"),
                ),
                "skipped" if is_off else "done",
            ),
            Line((one_line(found.description, 200),), indent=1),
        )
        if found.unavailable is not None:
            terminal.say(Line(((f"not available: {one_line(found.unavailable, 300)}", "warn"),), indent=1))
    if page.next_cursor is not None:
        terminal.say(Line(((f"more: --cursor {page.next_cursor}", "dim"),)))
