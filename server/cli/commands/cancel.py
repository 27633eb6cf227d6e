"""The command `cancel`: stops an execution, and says what is completed. It never guesses which execution is meant."""

from argparse import Namespace
from collections.abc import Mapping

import anyio

from planwarden.agent.common.errors import UnknownThread, UsageError
from planwarden.agent.core.state import ExecutionState, StepStatus
from planwarden.agent.ports.store import Header
from planwarden.server.api.service import Service
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.context import CliContext
from planwarden.server.cli.output import DONE, FAILED, confirm
from planwarden.server.cli.session import CliSession
from planwarden.server.cli.terminal.commands import shorten
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.tools.registry import Registry

MAX_LISTED = 20
NEWEST = 100
"""The newest executions among which those that still run are looked for, besides those that wait."""
GROUPS: Mapping[str, tuple[StepStatus, ...]] = {
    "Completed, and not undone": ("completed",),
    "Failed or rejected": ("failed", "rejected"),
    "Not completed": ("pending", "in_progress", "suspended", "skipped"),
}


def add_cancel(parser: CommandParser) -> None:
    parser.handle(handle_cancel, uses_servers=True)
    parser.add_argument(
        "thread",
        metavar="THREAD",
        nargs="?",
        help="its threadId, or the beginning of one; without it, the command only lists what can be cancelled",
    )
    parser.add_argument("--reason", metavar="TEXT", help="reason for the record")
    parser.add_argument(
        "--yes", action="store_true", help="do not ask; a terminal asks when something has had its effect"
    )


def handle_cancel(arguments: Namespace) -> int:
    session = CliSession.from_arguments(arguments, says_yes=arguments.yes)
    if arguments.thread is None:
        found = anyio.run(_find_unfinished, session.context)
        if not found:
            raise UsageError("nothing runs or waits here, so there is nothing to cancel")
        _draw_unfinished(session.terminal, found)
        command = session.context.command("cancel", "THREAD")
        raise UsageError(
            f"name the one to cancel: `{command}`", details={"threads": [execution.thread_id for execution in found]}
        )
    header, execution = anyio.run(_read_execution, session.context, arguments.thread)
    if execution.is_finished:
        session.terminal.say(f"It is {execution.status} already; there was nothing to cancel.")
        session.finish(arguments, execution)
        return DONE if execution.status == "cancelled" else FAILED
    done = _find_effects(execution, session.context.tools)
    if done and session.terminal.can_ask:
        session.terminal.say(f"These steps have had an effect, and cancelling does not undo it: {_join(done)}.")
        if not confirm(session.terminal, "Cancel the rest?", says_yes=session.says_yes):
            session.terminal.say("Nothing was cancelled.")
            return FAILED

    async def work() -> ExecutionState:
        async with session.context.open_for_writing() as service:
            await service.cancel_execution(header.thread_id, reason=arguments.reason, principal=header.principal)
            return await service.engine.find(header.execution_id)

    execution = anyio.run(work)
    _draw_steps(session.terminal, execution)
    code = session.finish(arguments, execution)
    return DONE if execution.status == "cancelled" else code


async def _read_execution(context: CliContext, beginning: str) -> tuple[Header, ExecutionState]:
    async with context.open_for_reading() as service:
        thread_id = await context.find_id(service.engine.store, "thread", beginning)
        headers = await service.engine.store.thread(thread_id)
        if not headers:
            raise UnknownThread(
                f"there is no thread {thread_id[:64]!r}; `{context.command('cancel')}` lists what can be cancelled"
            )
        return headers[-1], await service.engine.find(headers[-1].execution_id)


async def _find_unfinished(context: CliContext) -> list[ExecutionState]:
    """Returns what waits, oldest first, and what runs; at most `MAX_LISTED`."""
    async with context.open_for_reading() as service:
        rows = (await service.engine.store.suspensions(limit=MAX_LISTED)).rows
        headers = await service.engine.store.executions(None, NEWEST)
        ids = dict.fromkeys([*(row.execution_id for row in rows), *(header.execution_id for header in headers)])
        return await _load_unfinished(service, ids)


async def _load_unfinished(service: Service, ids: Mapping[str, None]) -> list[ExecutionState]:
    found: list[ExecutionState] = []
    for execution_id in ids:
        execution = await service.engine.find(execution_id)
        if not execution.is_finished and len(found) < MAX_LISTED:
            found.append(execution)
    return found


def _find_effects(execution: ExecutionState, tools: Registry) -> list[str]:
    """Returns the steps whose calls may have changed something; a tool that is not known here counts."""
    return [
        state.step.step_id
        for state in execution.steps.values()
        if any(
            call.status in ("running", "succeeded", "outcome_unknown")
            and ((known := tools.get(call.tool_name)) is None or known.effect != "read")
            for call in state.calls
        )
    ]


def _draw_unfinished(terminal: Terminal, found: list[ExecutionState]) -> None:
    terminal.say(TerminalLine((("Unfinished:", "bold"),)))
    for execution in found:
        summary = one_line(execution.goal or "; ".join(s.step.description for s in execution.steps.values()), 100)
        terminal.say(
            TerminalLine(((shorten(execution.thread_id), "bold"), (f"  {execution.status}  {summary}", "dim")), "asks")
        )


def _draw_steps(terminal: Terminal, execution: ExecutionState) -> None:
    for title, statuses in GROUPS.items():
        steps = [state.step.step_id for state in execution.steps.values() if state.status in statuses]
        if steps:
            terminal.say(f"{title}: {_join(steps)}.")
    unknown = [
        state.step.step_id
        for state in execution.steps.values()
        if any(call.status == "outcome_unknown" for call in state.list_open_calls())
    ]
    if unknown:
        text = f"Nobody knows whether a call happened: {_join(unknown)}. A retry asks first."
        terminal.say(TerminalLine(((text, "warn"),)))


def _join(steps: list[str]) -> str:
    shown = ", ".join(one_line(step, 64) for step in steps[:MAX_LISTED])
    return shown + (f" and {len(steps) - MAX_LISTED} more" if len(steps) > MAX_LISTED else "")
