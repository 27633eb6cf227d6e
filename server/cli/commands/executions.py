"""Executions as `list` shows them, the newest activity first: as the page of plans does, without reading a log."""

from argparse import Namespace

from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Lookups
from planwarden.server.api.home import Home
from planwarden.server.api.limits import check_limit
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.card import format_host
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.server.views.instants import format_age
from planwarden.server.views.listing import ExecutionLine, ExecutionLines, build_line
from planwarden.server.views.status_words import STATUSES

TITLE_CHARS = 100
FAULT_CHARS = 160
FILTERS = ("search", "state", "tool", "host", "plan")
"""Options of `list` that choose executions."""


def wants_executions(arguments: Namespace) -> bool:
    """Return True when the command line asks for executions instead of questions."""
    return arguments.executions or any(vars(arguments)[name] is not None for name in FILTERS)


def list_executions(home: Home, terminal: Terminal | None, arguments: Namespace) -> ExecutionLines:
    """Return a page of the executions that fit the command line, and draws it on the terminal, if any.

    Raises:
        InvalidArguments: the limit or the cursor cannot be used.
    """
    check_limit(arguments.limit)
    filters = ExecutionFilter(
        search=arguments.search or "",
        status=STATUSES[arguments.state] if arguments.state else None,
        host=arguments.host,
        tool=arguments.tool,
        saved_plan=arguments.plan,
    )

    async def work(store: Lookups) -> ExecutionLines:
        page = await read_lines(store, filters, limit=arguments.limit, cursor=arguments.cursor)
        if terminal is not None:
            _draw_page(terminal, home, page, arguments, store.clock.now())
        return page

    return home.read(work)


async def read_lines(
    store: Lookups, filters: ExecutionFilter, *, limit: int, cursor: str | None = None
) -> ExecutionLines:
    """Return a page of executions. Raises `InvalidArguments` for a foreign cursor."""
    page = await store.list_executions(filters, limit=limit, cursor=cursor)
    return ExecutionLines(tuple(map(build_line, page.rows)), page.next_cursor)


def draw_line(terminal: Terminal, line: ExecutionLine, now: float) -> None:
    """Draw one execution."""
    words, age = line.words, format_age(now - line.changed_at.timestamp())
    thread = f"  {escape_text(shorten_id(line.thread_id))}"
    terminal.say(TerminalLine(((words.word, words.tone), thread, (f"  {age}", "dim")), words.mark))
    saved = f"saved plan {one_line(line.saved_plan, TITLE_CHARS)}" if line.saved_plan and line.is_quoted else ""
    host = format_host(line.host) if line.host else ""
    facts = " · ".join(filter(None, (line.describe_progress(), saved, host)))
    terminal.say(TerminalLine((one_line(line.title, TITLE_CHARS), (f"  {facts}" if facts else "", "dim")), indent=1))
    if line.fault is not None:
        terminal.say(TerminalLine(((one_line(line.fault, FAULT_CHARS), "dim"),), indent=1))


def _draw_page(terminal: Terminal, home: Home, page: ExecutionLines, arguments: Namespace, now: float) -> None:
    if not page.executions:
        terminal.say("No execution fits." if arguments.cursor is None else "No more executions fit.")
    for line in page.executions:
        draw_line(terminal, line, now)
    if page.next_cursor is not None:
        filters = [(name, vars(arguments)[name]) for name in FILTERS if vars(arguments)[name] is not None]
        words = [word for name, value in filters for word in (f"--{name}", str(value))] or ["--executions"]
        more = home.command("list", *words, "--cursor", page.next_cursor)
        terminal.say(TerminalLine(((f"more: {escape_text(more)}", "dim"),)))
