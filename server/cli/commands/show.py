"""The commands `list` and `show`, which only read. The operator's terminal shows the questions of every principal."""

import sys
from argparse import Namespace
from datetime import UTC, datetime

import anyio

from planwarden.agent.common.errors import InvalidArguments, UnknownThread, UsageError
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import Header
from planwarden.server.api.service import Service
from planwarden.server.cli.context import CliContext
from planwarden.server.cli.exit_codes import DONE
from planwarden.server.cli.output import build_terminal, print_json
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.cli.terminal.lines import OUTCOMES, TerminalLine, one_line, outcome_lines, step_lines
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.encoding import to_json
from planwarden.server.views.execution import Execution, build_execution_view
from planwarden.server.views.facts import escape_text
from planwarden.server.views.observations import build_observations
from planwarden.server.views.suspension import SuspensionPage, build_suspension_view
from planwarden.server.views.voices import build_label, build_title

RECENT = 5
_PLAIN_BYTES = bytes(range(0x20, 0x7F)) + b"\n\t"
"""Bytes that a terminal shows and does not obey."""


def handle_list(arguments: Namespace) -> int:
    context = CliContext.from_arguments(arguments)
    terminal = None if arguments.json else build_terminal(arguments)
    page = list_questions(context, terminal, limit=arguments.limit, cursor=arguments.cursor)
    if arguments.json:
        print_json(to_json(page))
    return DONE


def handle_show(arguments: Namespace) -> int:
    if arguments.artifact is not None:
        if arguments.json or arguments.observations is not None:
            raise UsageError("--artifact writes the artifact as it is; leave --json and --observations out")
        context, is_terminal = CliContext.from_arguments(arguments), sys.stdout.isatty()
        sys.stdout.buffer.write(read_artifact(context, arguments.thread, arguments.artifact, for_terminal=is_terminal))
        return DONE
    context = CliContext.from_arguments(arguments)
    terminal = None if arguments.json else build_terminal(arguments)
    view = show_thread(context, terminal, arguments.thread, observations_after=arguments.observations)
    if arguments.json:
        print_json(to_json(view))
    return DONE


async def _find_thread_id(context: CliContext, service: Service, beginning: str | None) -> str:
    """Returns the id of the thread that the user means: the newest one without a word.

    Raises:
        UnknownThread: there is none yet.
    """
    if beginning is not None:
        return await context.find_id(service, "thread", beginning)
    newest = await service.engine.store.executions(None, 1)
    if not newest:
        raise UnknownThread(f"nothing has run here yet; `{context.command('run', 'PLAN.json')}` runs a plan")
    return newest[0].thread_id


def list_questions(context: CliContext, terminal: Terminal | None, *, limit: int, cursor: str | None) -> SuspensionPage:
    """Returns open questions, oldest first, and draws them on the terminal, if any, with the newest executions."""

    async def work() -> SuspensionPage:
        async with context.open_for_reading() as service:
            page = await service.list_suspensions(limit=limit, cursor=cursor, principal=None)
            if terminal is not None:
                _draw_questions(terminal, context, page, service.engine.store.clock.now())
                await _draw_recent(terminal, service)
            return page

    return anyio.run(work)


def show_thread(
    context: CliContext, terminal: Terminal | None, beginning: str | None, *, observations_after: int | None
) -> Execution:
    """Returns the newest execution of the thread whose id begins so, and draws it on the terminal, if any.

    Raises:
        UnknownThread: there is no thread with that id.
    """
    if observations_after is not None and observations_after < 0:
        raise InvalidArguments("--observations must be 0 or more")

    async def work() -> Execution:
        async with context.open_for_reading() as service:
            thread_id = await _find_thread_id(context, service, beginning)
            headers = await service.engine.store.thread(thread_id)
            if not headers:
                raise UnknownThread(
                    f"there is no thread {thread_id[:64]!r}; `{context.command('list')}` shows the newest ones"
                )
            execution = await service.engine.find(headers[-1].execution_id)
            events = None
            if observations_after is not None:
                recorded = await service.engine.store.read(execution.execution_id, observations_after)
                events = list(build_observations(recorded, execution))
            view = build_execution_view(execution, context.tools, events)
            if terminal is not None:
                _draw_execution(terminal, context, execution, headers, service.engine.store.clock.now())
                _draw_observations(terminal, view)
            return view

    return anyio.run(work)


def read_artifact(context: CliContext, beginning: str | None, artifact_id: str, *, for_terminal: bool) -> bytes:
    """Returns the complete content of an artifact of the thread.

    Raises:
        UnknownArtifact: there is no such artifact.
        UsageError: the content goes to a terminal and has bytes that a terminal might obey.
    """

    async def work() -> bytes:
        async with context.open_for_reading() as service:
            thread_id = await _find_thread_id(context, service, beginning)
            return (await service.read_artifact(thread_id, artifact_id, principal=None)).data

    data = anyio.run(work)
    if for_terminal and data.translate(None, delete=_PLAIN_BYTES):
        raise UsageError(f"artifact {artifact_id!r} is not plain text; redirect the output into a file")
    return data


def _draw_questions(terminal: Terminal, context: CliContext, page: SuspensionPage, now: float) -> None:
    if not page.suspensions:
        terminal.say(TerminalLine((("Nothing waits for an answer.", "good"),), "done"))
        return
    terminal.say(TerminalLine(((f"{page.total} waiting for an answer", "bold"),)))
    for suspension in page.suspensions:
        asked = f"asked {format_age(suspension.created_at.timestamp(), now)}"
        until = "" if suspension.expires_at is None else f" · until {suspension.expires_at:%Y-%m-%d %H:%M:%SZ}"
        answerer = "a person" if suspension.addressee == "human" else "the calling model"
        risk = f" · {suspension.risk}" if suspension.risk is not None else ""
        facts = f"  {suspension.kind} · {answerer}{risk} · {asked}{until}"
        terminal.say(
            TerminalLine(((suspension.suspension_id, "bold"), (facts, "dim")), "asks"),
            TerminalLine(
                (build_title(suspension), (f"  {build_label(suspension)}: ", "dim"), one_line(suspension.message, 160)),
                indent=1,
            ),
        )
    if page.next_cursor is not None:
        terminal.say(TerminalLine((("more: " + context.command("list", "--cursor", page.next_cursor), "dim"),)))
    commands = f"{context.command('approve', 'SUSPENSION')} · {context.command('reject', 'SUSPENSION')}"
    terminal.say(TerminalLine(((commands, "dim"),)))


async def _draw_recent(terminal: Terminal, service: Service) -> None:
    headers = await service.engine.store.executions(None, RECENT)
    if headers:
        terminal.say("", TerminalLine((("newest executions", "bold"),)))
    for header in headers:
        execution = await service.engine.find(header.execution_id)
        mark, style = OUTCOMES[execution.status]
        age = format_age(header.updated_at, service.engine.store.clock.now())
        summary = one_line(execution.goal or "; ".join(s.step.description for s in execution.steps.values()), 100)
        terminal.say(TerminalLine(((execution.status, style), f"  {header.thread_id}", (f"  {age}", "dim")), mark))
        terminal.say(TerminalLine(((summary, "dim"),), indent=1))


def _draw_execution(
    terminal: Terminal, context: CliContext, execution: ExecutionState, headers: tuple[Header, ...], now: float
) -> None:
    header = headers[-1]
    mark, style = OUTCOMES[execution.status]
    changed = f"  changed {format_age(header.updated_at, now)} · principal {escape_text(header.principal)}"
    terminal.say(TerminalLine(((execution.status, style), (changed, "dim")), mark))
    if execution.goal:
        terminal.say(TerminalLine((("goal: ", "dim"), one_line(execution.goal, 300))))
    if len(headers) > 1:
        terminal.say(TerminalLine(((f"the newest of {len(headers)} executions of this thread", "dim"),)))
    for state in execution.steps.values():
        terminal.say(*step_lines(execution, state))
    if execution.is_finished:
        terminal.panel(execution.status, outcome_lines(execution), style)
    for found in execution.open_suspensions:
        if found.question.addressee == "human":
            terminal_question.show(terminal, build_suspension_view(execution, found, context.tools), is_cut=False)
            terminal.say(TerminalLine(((context.command("approve", found.question.suspension_id), "bold"),)))
        elif found.question.addressee == "caller":
            text = f"the calling model has to answer: {one_line(found.question.message, 200)}"
            terminal.say(TerminalLine(((text, "warn"),), "asks"))


def _draw_observations(terminal: Terminal, view: Execution) -> None:
    for observation in view.observations or ():
        details = ", ".join(
            f"{key} {one_line(str(value), 80)}" for key, value in observation.data.items() if value is not None
        )
        step = f" {escape_text(observation.step_id)}" if observation.step_id else ""
        head = f"{observation.sequence:>4}  {observation.at:%H:%M:%S}  "
        terminal.say(TerminalLine(((head, "dim"), observation.type, (f"{step}  {details}", "dim"))))


def format_age(then: float, now: float) -> str:
    """Returns how long ago `then` was, in the largest unit that fits, or its date when that is long ago."""
    seconds = max(0, int(now - then))
    for size_s, unit, limit in ((1, "s", 60), (60, "min", 60), (3600, "h", 48), (86_400, "d", 60)):
        if seconds < size_s * limit:
            return f"{seconds // size_s} {unit} ago"
    return f"on {datetime.fromtimestamp(then, UTC):%Y-%m-%d}"
