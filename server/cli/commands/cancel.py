"""The command `cancel`: stops an execution, and says what is completed. It never guesses which execution is meant."""

from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from planwarden.agent.common.errors import LogUnreadable, UsageError
from planwarden.agent.core.execution.state import ExecutionState, StepStatus
from planwarden.agent.ports.listing import UNFINISHED, ExecutionFilter
from planwarden.agent.ports.store import Header, Lookups
from planwarden.agent.runtime.log_reader import find_execution, load_execution
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.session import open_session
from planwarden.server.cli.terminal.lines import MAX_LISTED, join_names, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.escaping import shorten_id
from planwarden.tools.registry import Registry

GROUPS: Mapping[str, tuple[StepStatus, ...]] = {
    "Completed, and not undone": ("completed",),
    "Failed or rejected": ("failed", "rejected"),
    "Not completed": ("pending", "in_progress", "suspended", "skipped"),
}


def add_cancel(parser: CommandParser) -> None:
    parser.handle(handle_cancel, uses_servers=True)
    text = "its threadId, or the beginning of one; without it, the command only lists what can be cancelled"
    parser.declare("thread THREAD", text, nargs="?")
    parser.declare("--reason TEXT", "reason for the record")
    parser.declare("--yes", "do not ask; otherwise a terminal asks first when a call may have changed something")


def handle_cancel(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        if arguments.thread is None:
            runs = session.home.read(_find_unfinished)
            if not runs:
                raise UsageError("nothing runs or waits here, so there is nothing to cancel")
            _draw_unfinished(session.terminal, runs)
            command = session.home.command("cancel", "THREAD")
            raise UsageError(
                f"name the one to cancel: `{command}`", details={"threads": [execution.thread_id for execution in runs]}
            )
        header, execution = session.home.read(partial(_read_execution, session.home, arguments.thread))
        if execution.is_finished:
            session.terminal.say(f"It is {execution.status} already; there was nothing to cancel.")
            session.finish(arguments, execution)
            return DONE if execution.status == "cancelled" else FAILED
        effects = _find_effects(execution, session.home.tools)
        if effects and session.terminal.can_ask:
            session.terminal.say(f"These steps may have acted, and cancelling does not undo it: {join_names(effects)}.")
            if not session.terminal.confirm("Cancel the rest?", "Nothing was cancelled.", says_yes=session.says_yes):
                return FAILED

        async def work(service: Service) -> ExecutionState:
            await service.cancel_execution(header.thread_id, reason=arguments.reason, principal=header.principal)
            return await service.find(header.execution_id)

        execution = session.home.run(work)
        _draw_steps(session.terminal, execution)
        code = session.finish(arguments, execution)
        return DONE if execution.status == "cancelled" else code


async def _read_execution(home: Home, beginning: str, store: Lookups) -> tuple[Header, ExecutionState]:
    headers = await home.find_thread(store, beginning, f"`{home.command('cancel')}` lists what can be cancelled")
    return headers[-1], await load_execution(store, headers[-1])


async def _find_unfinished(store: Lookups) -> list[ExecutionState]:
    """Return executions that wait, then other unfinished ones, the newest activity first; at most `MAX_LISTED`."""
    pages = [await store.list_executions(ExecutionFilter(status=status), limit=MAX_LISTED) for status in UNFINISHED]
    executions: dict[str, ExecutionState] = {}
    for row in (row for page in pages for row in page.rows):
        # An execution with a damaged log cannot be described, and `planwarden doctor` names it.
        with suppress(LogUnreadable):
            executions[row.execution_id] = await find_execution(store, row.execution_id)
    return [execution for execution in executions.values() if not execution.is_finished][:MAX_LISTED]


def _find_effects(execution: ExecutionState, tools: Registry) -> list[str]:
    """Return the ids of the steps whose calls may have changed something. Every call of an unknown tool counts."""
    return [
        state.step.step_id
        for state in execution.steps.values()
        if any(
            call.status in ("running", "succeeded", "outcome_unknown")
            and ((definition := tools.get(call.tool_name)) is None or definition.effect != "read")
            for call in state.calls
        )
    ]


def _draw_unfinished(terminal: Terminal, executions: list[ExecutionState]) -> None:
    terminal.line(("Unfinished:", "bold"))
    for execution in executions:
        summary = one_line(execution.goal or "; ".join(s.step.description for s in execution.steps.values()), 100)
        facts = (f"  {execution.status}  {summary}", "dim")
        terminal.line((shorten_id(execution.thread_id), "bold"), facts, mark="asks")


def _draw_steps(terminal: Terminal, execution: ExecutionState) -> None:
    for title, statuses in GROUPS.items():
        steps = [state.step.step_id for state in execution.steps.values() if state.status in statuses]
        if steps:
            terminal.say(f"{title}: {join_names(steps)}.")
    states = execution.steps.values()
    unknown = [s.step.step_id for s in states if any(call.status == "outcome_unknown" for call in s.list_open_calls())]
    if unknown:
        terminal.line((f"Nobody knows whether a call happened: {join_names(unknown)}. A retry asks first.", "warn"))
