"""The command `list`, which only reads. The operator's terminal shows the questions of every principal."""

from argparse import Namespace
from collections.abc import Iterator
from functools import partial

from planwarden.agent.core.execution.suspension_kinds import KINDS
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Lookups
from planwarden.agent.runtime.log_reader import find_execution
from planwarden.server.api.home import Home
from planwarden.server.api.limits import check_limit
from planwarden.server.api.suspension_reader import list_open_suspensions
from planwarden.server.cli.arguments import open_home
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.commands.executions import draw_line, list_executions, read_lines, wants_executions
from planwarden.server.cli.output import DONE, build_terminal, print_json
from planwarden.server.cli.terminal.lines import TerminalLine, arguments_text, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.server.views.instants import format_age
from planwarden.server.views.status_words import FORMER, STATUSES
from planwarden.server.views.suspension import Suspension, SuspensionPage, build_suspension_view

RECENT = 5
SHOWN_CALLS = 3


def add_list(parser: CommandParser) -> None:
    parser.handle(handle_list, uses_servers=True)
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="number of lines, at most 100; default %(default)s"
    )
    parser.add_argument("--cursor", help="continue after the page that printed this cursor")
    parser.add_argument(
        "--executions",
        action="store_true",
        help="list executions, the newest activity first; the options below do so too",
    )
    parser.add_argument(
        "--calls",
        action="store_true",
        help="of executions, list those that are calls through a gate, with arguments and results",
    )
    parser.add_argument("--search", metavar="WORDS", help="only those with each word in goal, saved plan, thread or id")
    parser.add_argument(
        "--state",
        type=_read_state,
        choices=tuple(STATUSES),
        help="only those in this state",
    )
    parser.add_argument("--tool", metavar="TOOL", help="only those that name this tool")
    parser.add_argument("--host", metavar="NAME", help="only those that this program asked for, as it names itself")
    parser.add_argument("--plan", metavar="NAME", help="only the runs of this saved plan")


def _read_state(word: str) -> str:
    return FORMER.get(word, word)


def handle_list(arguments: Namespace) -> int:
    home = open_home(arguments)
    terminal = None if arguments.json else build_terminal(arguments)
    page = (
        list_executions(home, terminal, arguments)
        if wants_executions(arguments)
        else list_questions(home, terminal, limit=arguments.limit, cursor=arguments.cursor)
    )
    if arguments.json:
        print_json(to_json(page))
    return DONE


def list_questions(home: Home, terminal: Terminal | None, *, limit: int, cursor: str | None) -> SuspensionPage:
    """Return open questions, oldest first, and draws them on the terminal, if any, with the newest executions."""

    check_limit(limit)

    async def work(store: Lookups) -> SuspensionPage:
        find = partial(find_execution, store)
        # JSON has the tools that are offered to a caller; a terminal shows nothing of them.
        tools = home.definitions if terminal is None else None
        page = await list_open_suspensions(
            store,
            find,
            partial(build_suspension_view, tools=tools, program=home.program),
            limit=limit,
            cursor=cursor,
            principal=None,
        )
        if terminal is not None:
            _draw_questions(terminal, home, page, store.clock.now())
            await _draw_recent(terminal, home, store)
        return page

    return home.read(work)


def _draw_questions(terminal: Terminal, home: Home, page: SuspensionPage, now: float) -> None:
    if not page.suspensions:
        terminal.say(TerminalLine((("Nothing waits for an answer.", "good"),), "done"))
        return
    terminal.say(TerminalLine(((f"{page.total} waiting for an answer", "bold"),)))
    for suspension in page.suspensions:
        age = f"asked {format_age(now - suspension.created_at.timestamp())}"
        until = "" if suspension.expires_at is None else f" · until {suspension.expires_at:%Y-%m-%d %H:%M:%SZ}"
        answerer = "a person" if suspension.addressee == "human" else "the calling model"
        risk = f" · {suspension.risk}" if suspension.risk is not None else ""
        facts = f"  {suspension.kind} · {answerer}{risk} · {age}{until}"
        terminal.say(
            TerminalLine(((shorten_id(suspension.suspension_id), "bold"), (facts, "dim")), "asks"),
            TerminalLine(
                (suspension.card.title, (f"  {suspension.card.label}: ", "dim"), one_line(suspension.message, 160)),
                indent=1,
            ),
            *_list_details(suspension),
        )
    if page.next_cursor is not None:
        terminal.say(TerminalLine((("more: " + home.command("list", "--cursor", page.next_cursor), "dim"),)))
    commands = f"{home.command('approve', 'SUSPENSION')} · {home.command('reject', 'SUSPENSION')}"
    terminal.say(TerminalLine(((commands, "dim"),)))


def _list_details(suspension: Suspension) -> Iterator[TerminalLine]:
    """Yield the calls that the question is about, with their arguments, and the plan that makes them."""
    calls = suspension.calls if suspension.tool_call is None else (suspension.tool_call,)
    if not KINDS[suspension.kind].is_in_words:
        for call in calls[:SHOWN_CALLS]:
            yield TerminalLine((f"{escape_text(call.tool_name)}{arguments_text(call.arguments)}",), indent=1)
    if len(calls) > SHOWN_CALLS:
        yield TerminalLine(((f"and {len(calls) - SHOWN_CALLS} more calls", "dim"),), indent=1)
    plan = suspension.card.where
    thread = f"thread {escape_text(shorten_id(suspension.thread_id))}"
    yield TerminalLine(((" · ".join(filter(None, (plan, thread))), "dim"),), indent=1)


async def _draw_recent(terminal: Terminal, home: Home, store: Lookups) -> None:
    page = await read_lines(store, ExecutionFilter(), limit=RECENT)
    if page.executions:
        terminal.say("", TerminalLine((("newest executions", "bold"),)))
    for line in page.executions:
        draw_line(terminal, line, store.clock.now())
    if page.next_cursor is not None:
        terminal.say(TerminalLine(((f"all: {home.command('list', '--executions')}", "dim"),)))
