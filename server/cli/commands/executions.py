"""Executions as `list` shows them, the newest activity first: without reading a log, except for calls."""

from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Lookups
from planwarden.agent.runtime.log_reader import find_execution
from planwarden.server.api.home import Home
from planwarden.server.api.limits import check_limit
from planwarden.server.cli.terminal.lines import TerminalLine, one_line, step_lines
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.card import format_host
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.server.views.instants import format_age
from planwarden.server.views.listing import ExecutionLine, ExecutionLines, build_line
from planwarden.server.views.status_words import STATUSES
from planwarden.server.views.tools import build_tool_call

TITLE_CHARS = 100
FAULT_CHARS = 160
FILTERS = ("search", "state", "tool", "host", "plan")
"""Options of `list` that choose executions."""
SWITCHES = ("executions", "calls")


def wants_executions(arguments: Namespace) -> bool:
    """Return True when the command line asks for executions instead of questions."""
    return any(vars(arguments)[name] for name in SWITCHES) or any(vars(arguments)[name] is not None for name in FILTERS)


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
        is_gated=arguments.calls or None,
    )

    async def work(store: Lookups) -> ExecutionLines:
        page = await read_lines(store, filters, limit=arguments.limit, cursor=arguments.cursor)
        states: dict[str, ExecutionState] = {}
        for line in page.executions if arguments.calls else ():
            # One damaged execution must not hide the calls of the others.
            with suppress(StoreError):
                states[line.execution_id] = await find_execution(store, line.execution_id)
        if terminal is not None:
            _draw_page(terminal, home, page, arguments, store.clock.now(), states)
        return replace(
            page, executions=tuple(_add_calls(line, states.get(line.execution_id)) for line in page.executions)
        )

    return home.read(work)


async def read_lines(
    store: Lookups, filters: ExecutionFilter, *, limit: int, cursor: str | None = None
) -> ExecutionLines:
    """Return a page of executions. Raises `InvalidArguments` for a foreign cursor."""
    page = await store.list_executions(filters, limit=limit, cursor=cursor)
    return ExecutionLines(tuple(map(build_line, page.rows)), page.next_cursor)


def _add_calls(line: ExecutionLine, state: ExecutionState | None) -> ExecutionLine:
    """Return the line with the calls of its execution; `show` has what servers sent beside their results."""
    if state is None:
        return line
    calls = (call for step in state.steps.values() for call in step.list_known_calls())
    return replace(line, calls=tuple(replace(build_tool_call(call), beside=None) for call in calls))


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


def _draw_page(
    terminal: Terminal,
    home: Home,
    page: ExecutionLines,
    arguments: Namespace,
    now: float,
    states: Mapping[str, ExecutionState],
) -> None:
    if not page.executions:
        terminal.say("No execution fits." if arguments.cursor is None else "No more executions fit.")
    for line in page.executions:
        draw_line(terminal, line, now)
        if line.execution_id in states:
            state = states[line.execution_id]
            terminal.say(*(text for step in state.steps.values() for text in step_lines(state, step)[1:]))
    if page.next_cursor is not None:
        filters = [(name, vars(arguments)[name]) for name in FILTERS if vars(arguments)[name] is not None]
        words = [f"--{name}" for name in SWITCHES if vars(arguments)[name]]
        words += [word for name, value in filters for word in (f"--{name}", str(value))]
        more = home.command("list", *words, "--cursor", page.next_cursor)
        terminal.say(TerminalLine(((f"more: {escape_text(more)}", "dim"),)))
