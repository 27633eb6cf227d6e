"""The command `list`, which shows open questions, or executions with the newest activity first, and changes nothing.

It lists the entries of all principals. A list of executions reads their logs only if `--calls` is given.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution.question import KINDS
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Lookups
from planwarden.agent.runtime.log_reader import find_execution
from planwarden.server.api.home import Home
from planwarden.server.api.limits import check_limit
from planwarden.server.api.waiting import list_open_suspensions
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import DONE, print_json
from planwarden.server.cli.terminal.lines import TerminalLine, arguments_text, one_line, step_lines
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal
from planwarden.server.views.card import format_host
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.server.views.instants import format_age
from planwarden.server.views.listing import ExecutionLine, ExecutionLines, build_line
from planwarden.server.views.status_words import STATUSES
from planwarden.server.views.suspension import Suspension, SuspensionPage, build_suspension_view
from planwarden.server.views.tools import build_tool_call

RECENT = 5
SHOWN_CALLS = 3
TITLE_CHARS = 100
FILTERS = ("search", "state", "tool", "host", "plan")
"""Options that choose executions."""
SWITCHES = ("executions", "calls")


def add_list(parser: CommandParser) -> None:
    parser.handle(handle_list, uses_servers=True)
    parser.declare("--limit N", "number of lines, at most 100; default %(default)s", type=int, default=20)
    parser.declare("--cursor CURSOR", "continue after the page that printed this cursor")
    parser.declare("--executions", "list executions, the newest activity first; the options below do so too")
    parser.declare("--calls", "list only executions that are calls through a gate, with arguments and results")
    parser.declare("--search WORDS", "only those with each word in goal, saved plan, thread or id")
    parser.declare("--state", "only those in this state", choices=tuple(STATUSES))
    parser.declare("--tool TOOL", "only those that name this tool")
    parser.declare("--host NAME", "only those that this program asked for, as it names itself")
    parser.declare("--plan NAME", "only the runs of this saved plan")


def handle_list(arguments: Namespace) -> int:
    home = open_home(arguments)
    terminal = None if arguments.json else build_terminal(arguments)
    check_limit(arguments.limit)
    choices = {name: vars(arguments)[name] for name in (*SWITCHES, *FILTERS)}
    if any(value not in (None, False) for value in choices.values()):
        page = home.read(partial(_list_executions, home, terminal, arguments))
    else:
        page = home.read(partial(_list_questions, home, terminal, arguments))
    if arguments.json:
        print_json(to_json(page))
    return DONE


async def _list_questions(
    home: Home, terminal: Terminal | None, arguments: Namespace, store: Lookups
) -> SuspensionPage:
    """Return open questions, oldest first. If there is a terminal, draw them and the newest executions."""
    # JSON has the definitions of the tools that a question offers to a caller; a terminal does not show them.
    tools = home.definitions if terminal is None else None
    page = await list_open_suspensions(
        store,
        partial(find_execution, store),
        partial(build_suspension_view, tools=tools, program=home.program),
        limit=arguments.limit,
        cursor=arguments.cursor,
        principal=None,
    )
    if terminal is not None:
        _draw_questions(terminal, home, page, store.clock.now())
        recent = await _read_lines(store, ExecutionFilter(), limit=RECENT)
        if recent.executions:
            terminal.say("", TerminalLine(("newest executions", "bold")))
        for line in recent.executions:
            _draw_line(terminal, line, store.clock.now())
        if recent.next_cursor is not None:
            terminal.line((f"all: {home.command('list', '--executions')}", "dim"))
    return page


def _draw_questions(terminal: Terminal, home: Home, page: SuspensionPage, now: float) -> None:
    if not page.suspensions:
        terminal.line(("Nothing waits for an answer.", "good"), mark="done")
        return
    terminal.line((f"{page.total} waiting for an answer", "bold"))
    for suspension in page.suspensions:
        age = f"asked {format_age(now - suspension.created_at.timestamp())}"
        until = "" if suspension.expires_at is None else f" · until {suspension.expires_at:%Y-%m-%d %H:%M:%SZ}"
        is_human = suspension.addressee == "human"
        answerer = "a person" if is_human else "the calling model"
        risk = f" · {suspension.risk}" if suspension.risk is not None else ""
        facts = f"  {suspension.kind} · {answerer}{risk} · {age}{until}"
        label = (f"  {suspension.card.label if is_human else 'its prompt'}: ", "dim")
        terminal.say(
            TerminalLine((shorten_id(suspension.suspension_id), "bold"), (facts, "dim"), mark="asks"),
            TerminalLine(suspension.card.title, label, one_line(suspension.message, 160), indent=1),
            *_list_details(suspension),
        )
    if page.next_cursor is not None:
        terminal.line(("more: " + home.command("list", "--cursor", page.next_cursor), "dim"))
    terminal.line((f"{home.command('approve', 'QUESTION')} · {home.command('reject', 'QUESTION')}", "dim"))


def _list_details(suspension: Suspension) -> Iterator[TerminalLine]:
    """Yield the calls that the question is about, with their arguments, then their plan, host and thread."""
    calls = suspension.calls if suspension.tool_call is None else (suspension.tool_call,)
    if not KINDS[suspension.kind].is_verbatim:
        for call in calls[:SHOWN_CALLS]:
            yield TerminalLine(f"{escape_text(call.tool_name)}{arguments_text(call.arguments)}", indent=1)
    if len(calls) > SHOWN_CALLS:
        yield TerminalLine((f"and {len(calls) - SHOWN_CALLS} more calls", "dim"), indent=1)
    thread = f"thread {escape_text(shorten_id(suspension.thread_id))}"
    yield TerminalLine((" · ".join(filter(None, (suspension.card.where, thread))), "dim"), indent=1)


async def _list_executions(
    home: Home, terminal: Terminal | None, arguments: Namespace, store: Lookups
) -> ExecutionLines:
    """Return a page of the executions that fit the command line. If there is a terminal, draw the page on it."""
    filters = ExecutionFilter(
        search=arguments.search or "",
        status=STATUSES[arguments.state] if arguments.state else None,
        host=arguments.host,
        tool=arguments.tool,
        saved_plan=arguments.plan,
        is_gated=arguments.calls or None,
    )
    page = await _read_lines(store, filters, limit=arguments.limit, cursor=arguments.cursor)
    states: dict[str, ExecutionState] = {}
    for line in page.executions if arguments.calls else ():
        # One damaged execution must not hide the calls of the others.
        with suppress(StoreError):
            states[line.execution_id] = await find_execution(store, line.execution_id)
    if terminal is not None:
        _draw_executions(terminal, home, page, arguments, store.clock.now(), states)
    return replace(page, executions=tuple(_add_calls(line, states.get(line.execution_id)) for line in page.executions))


async def _read_lines(
    store: Lookups, filters: ExecutionFilter, *, limit: int, cursor: str | None = None
) -> ExecutionLines:
    page = await store.list_executions(filters, limit=limit, cursor=cursor)
    return ExecutionLines(tuple(map(build_line, page.rows)), page.next_cursor)


def _add_calls(line: ExecutionLine, state: ExecutionState | None) -> ExecutionLine:
    """Return the line with the calls of its execution, without their field `beside`, which `show` prints."""
    if state is None:
        return line
    calls = (call for step in state.steps.values() for call in step.list_known_calls())
    return replace(line, calls=tuple(replace(build_tool_call(call), beside=None) for call in calls))


def _draw_line(terminal: Terminal, line: ExecutionLine, now: float) -> None:
    words, age = line.words, format_age(now - line.changed_at.timestamp())
    thread = f"  {escape_text(shorten_id(line.thread_id))}"
    terminal.line((words.word, words.tone), thread, (f"  {age}", "dim"), mark=words.mark)
    saved = f"saved plan {one_line(line.saved_plan, TITLE_CHARS)}" if line.saved_plan and line.is_quoted else ""
    host = format_host(line.host) if line.host else ""
    facts = " · ".join(filter(None, (line.describe_progress(), saved, host)))
    terminal.line(one_line(line.title, TITLE_CHARS), (f"  {facts}" if facts else "", "dim"), indent=1)
    if line.fault is not None:
        terminal.line((one_line(line.fault, 160), "dim"), indent=1)


def _draw_executions(
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
        _draw_line(terminal, line, now)
        if line.execution_id in states:
            state = states[line.execution_id]
            terminal.say(*(text for step in state.steps.values() for text in step_lines(state, step)[1:]))
    if page.next_cursor is not None:
        words = [f"--{name}" for name in SWITCHES if vars(arguments)[name]]
        filters = [(name, vars(arguments)[name]) for name in FILTERS if vars(arguments)[name] is not None]
        words += [word for name, value in filters for word in (f"--{name}", str(value))]
        more = home.command("list", *words, "--cursor", page.next_cursor)
        terminal.line((f"more: {escape_text(more)}", "dim"))
