"""Commands that look: `list` and `show`. The operator's terminal sees the questions of every principal."""

from datetime import UTC, datetime

import anyio

from planwarden.agent.common.errors import InvalidArguments, UnknownThread, UsageError
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import Header
from planwarden.server.api.service import Service
from planwarden.server.cli.home import CliHome
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.cli.terminal.lines import OUTCOMES, TerminalLine, one_line, outcome_lines, step_lines
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.execution import Execution, build_execution_view
from planwarden.server.views.facts import escape_text
from planwarden.server.views.observations import observations
from planwarden.server.views.suspension import SuspensionPage, build_suspension_view

RECENT = 5
_HARMLESS = bytes(range(0x20, 0x7F)) + b"\n\t"
"""Bytes that a terminal only shows."""


def list_questions(home: CliHome, terminal: Terminal | None, *, limit: int, cursor: str | None) -> SuspensionPage:
    """Open questions, oldest first; drawn when there is a terminal."""

    async def look() -> SuspensionPage:
        async with home.looking() as service:
            page = await service.list_suspensions(limit=limit, cursor=cursor, principal=None)
            if terminal is not None:
                _draw_questions(terminal, home, page, service.engine.store.clock.now())
                await _draw_recent(terminal, service)
            return page

    return anyio.run(look)


def show_thread(
    home: CliHome, terminal: Terminal | None, thread_id: str, *, observations_after: int | None
) -> Execution:
    """The thread's newest execution; drawn when there is a terminal.

    Raises:
        UnknownThread: there is none with that id.
    """
    if observations_after is not None and observations_after < 0:
        raise InvalidArguments("--observations must be 0 or more")

    async def look() -> Execution:
        async with home.looking() as service:
            headers = await service.engine.store.thread(thread_id)
            if not headers:
                raise UnknownThread(f"there is no thread {thread_id[:64]!r}; `planwarden list` shows the newest ones")
            execution = await service.engine.find(headers[-1].execution_id)
            events = None
            if observations_after is not None:
                recorded = await service.engine.store.read(execution.execution_id, observations_after)
                events = list(observations(recorded, execution))
            view = build_execution_view(execution, home.tools, events)
            if terminal is not None:
                _draw_execution(terminal, home, execution, headers, service.engine.store.clock.now())
                _draw_observations(terminal, view)
            return view

    return anyio.run(look)


def read_artifact(home: CliHome, thread_id: str, artifact_id: str, *, for_eyes: bool) -> bytes:
    """The whole content of an artifact of the thread; `for_eyes` when it goes to a terminal.

    Raises:
        UnknownArtifact: there is none.
        UsageError: a terminal might obey what is in it.
    """

    async def look() -> bytes:
        async with home.looking() as service:
            return (await service.artifact(thread_id, artifact_id, principal=None)).data

    data = anyio.run(look)
    if for_eyes and data.translate(None, delete=_HARMLESS):
        raise UsageError(f"artifact {artifact_id!r} is not plain text; redirect the output into a file")
    return data


def _draw_questions(terminal: Terminal, home: CliHome, page: SuspensionPage, now: float) -> None:
    if not page.suspensions:
        terminal.say(TerminalLine((("Nothing waits for an answer.", "good"),), "done"))
        return
    terminal.say(TerminalLine(((f"{page.total} waiting for an answer", "bold"),)))
    for found in page.suspensions:
        asked = f"asked {age(found.created_at.timestamp(), now)}"
        until = "" if found.expires_at is None else f" · until {found.expires_at:%Y-%m-%d %H:%M:%SZ}"
        whom = "a person" if found.addressee == "human" else "the calling model"
        risk = f" · {found.risk} · digest {found.digest[:12]}" if found.risk is not None else ""
        terminal.say(
            TerminalLine(
                ((found.suspension_id, "bold"), (f"  {found.kind} · {whom}{risk} · {asked}{until}", "dim")), "asks"
            ),
            TerminalLine((one_line(found.message, 160),), indent=1),
        )
    if page.next_cursor is not None:
        terminal.say(TerminalLine((("more: " + home.command("list", "--cursor", page.next_cursor), "dim"),)))
    how = f"{home.command('approve', 'SUSPENSION')} · {home.command('reject', 'SUSPENSION')}"
    terminal.say(TerminalLine(((how, "dim"),)))


async def _draw_recent(terminal: Terminal, service: Service) -> None:
    headers = await service.engine.store.executions(None, RECENT)
    if headers:
        terminal.say("", TerminalLine((("newest executions", "bold"),)))
    for header in headers:
        execution = await service.engine.find(header.execution_id)
        mark, style = OUTCOMES[execution.status]
        when = age(header.updated_at, service.engine.store.clock.now())
        what = one_line(execution.goal or "; ".join(s.step.description for s in execution.steps.values()), 100)
        terminal.say(TerminalLine(((execution.status, style), f"  {header.thread_id}", (f"  {when}", "dim")), mark))
        terminal.say(TerminalLine(((what, "dim"),), indent=1))


def _draw_execution(
    terminal: Terminal, home: CliHome, execution: ExecutionState, headers: tuple[Header, ...], now: float
) -> None:
    header = headers[-1]
    mark, style = OUTCOMES[execution.status]
    changed = f"  changed {age(header.updated_at, now)} · principal {escape_text(header.principal)}"
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
            terminal_question.show(terminal, build_suspension_view(execution, found, home.tools))
            terminal.say(TerminalLine(((home.command("approve", found.question.suspension_id), "bold"),)))
        elif found.question.addressee == "caller":
            text = f"the calling model has to answer: {one_line(found.question.message, 200)}"
            terminal.say(TerminalLine(((text, "warn"),), "asks"))


def _draw_observations(terminal: Terminal, view: Execution) -> None:
    for seen in view.observations or ():
        details = ", ".join(
            f"{key} {one_line(str(value), 80)}" for key, value in seen.data.items() if value is not None
        )
        where = f" {escape_text(seen.step_id)}" if seen.step_id else ""
        head = f"{seen.sequence:>4}  {seen.at:%H:%M:%S}  "
        terminal.say(TerminalLine(((head, "dim"), seen.type, (f"{where}  {details}", "dim"))))


def age(then: float, now: float) -> str:
    """How long ago, in the largest unit that fits; the date when it is long ago."""
    seconds = max(0, int(now - then))
    for size, unit in ((1, "s"), (60, "min"), (3600, "h"), (86_400, "d")):
        if seconds < size * {"s": 60, "min": 60, "h": 48, "d": 60}[unit]:
            return f"{seconds // size} {unit} ago"
    return f"on {datetime.fromtimestamp(then, UTC):%Y-%m-%d}"
