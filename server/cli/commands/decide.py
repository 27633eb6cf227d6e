"""The commands `approve` and `reject`: decide on one question, and continue its execution."""

import time
from argparse import Namespace

import anyio

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import AlreadyDecided, UsageError
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.server.cli.commands.code import approve_with_code
from planwarden.server.cli.context import CliContext, find_id, find_suspension
from planwarden.server.cli.exit_codes import DONE
from planwarden.server.cli.session import CHANNEL, CliSession, record_decision, record_time_out
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.suspension import Suspension

PATIENCE_S = 60.0
"""The longest that these commands wait for a time at which the execution continues."""


def handle_approve(arguments: Namespace) -> int:
    session = CliSession.from_arguments(arguments, patience_s=PATIENCE_S)
    if arguments.code is None and arguments.digest is None:
        return session.finish(arguments, approve(session, arguments.suspension))
    if arguments.code is None or arguments.digest is None:
        raise UsageError("--code and --digest go together: who approves, and what")
    suspension_id = anyio.run(_find_suspension_id, session.context, arguments.suspension)
    execution = approve_with_code(session, suspension_id, arguments.code, arguments.digest)
    return session.finish(arguments, execution)


def handle_reject(arguments: Namespace) -> int:
    session = CliSession.from_arguments(arguments, patience_s=PATIENCE_S)
    execution = reject(session, arguments.suspension, arguments.reason)
    code = session.finish(arguments, execution)
    # The command did what the user wanted, so a rejected execution is a success here.
    return DONE if execution.status == "rejected" else code


async def _find_suspension_id(context: CliContext, beginning: str) -> str:
    async with context.open_for_reading() as service:
        return await find_id(service, "suspension", beginning)


def approve(session: CliSession, beginning: str) -> ExecutionState:
    """Asks the person at the terminal about one question, and continues its execution.

    Raises:
        UsageError: nobody can be asked here, or the question cannot be answered at a terminal.
        AlreadyDecided: it was decided differently before.
    """
    execution, found, owner = anyio.run(_read_suspension, session.context, beginning)
    suspension_id = found.question.suspension_id
    if not found.is_open:
        return _repeat_decision(session, execution, found, approved=True)
    if found.question.addressee != "human":
        answerer = "the clock" if found.question.addressee == "clock" else "the calling model, which uses submit_answer"
        raise UsageError(f"suspension {suspension_id!r} is not for a person; it waits for {answerer}")
    if found.question.expires_at is not None and found.question.expires_at <= time.time():
        session.terminal.say(TerminalLine((("The time to answer has passed.", "warn"),), "note"))
        return session.run_and_watch(lambda service: record_time_out(service, suspension_id))
    if not session.terminal.can_ask:
        raise UsageError(
            "approving needs a terminal where a person can read the question and type the answer, and there is none "
            "here; run it in a terminal, decide in the inbox, or give --code and --digest"
        )
    session.context.check_tools(execution)
    suspension = session.build_view(execution, found)
    if not session.can_approve(suspension, owner):
        return execution
    terminal_question.show(session.terminal, suspension)
    decision = terminal_question.ask(session.terminal, suspension)
    if decision is None:
        session.terminal.say("Nothing was decided; the question stays open.")
        return execution
    _hide_settled_steps(session.terminal, execution)
    return session.answer(suspension, decision)


def reject(session: CliSession, beginning: str, reason: str | None) -> ExecutionState:
    """Rejects one question, which every operator may do, and continues its execution.

    Where the execution's tools are not known, the rejection is recorded and a process that has the tools continues.

    Raises:
        AlreadyDecided: it was decided differently before.
    """
    execution, found, _ = anyio.run(_read_suspension, session.context, beginning)
    if not found.is_open:
        return _repeat_decision(session, execution, found, approved=False)
    suspension = session.build_view(execution, found)
    decision = Decision(approved=False, reason=reason)
    _hide_settled_steps(session.terminal, execution)
    try:
        session.context.check_tools(execution)
    except UsageError:
        return anyio.run(_record_without_running, session, suspension, decision)
    return session.answer(suspension, decision)


async def _record_without_running(session: CliSession, suspension: Suspension, decision: Decision) -> ExecutionState:
    async with session.context.open_for_writing(follows=False) as service:
        return await record_decision(service, suspension, decision, CHANNEL, session.assurance)


async def _read_suspension(context: CliContext, beginning: str) -> tuple[ExecutionState, SuspensionState, str]:
    """Returns the suspension whose id begins so, its execution, and the principal that owns both."""
    async with context.open_for_reading() as service:
        row, execution = await find_suspension(service, await find_id(service, "suspension", beginning))
        return execution, execution.suspensions[row.suspension_id], row.principal


def _repeat_decision(
    session: CliSession, execution: ExecutionState, suspension: SuspensionState, *, approved: bool
) -> ExecutionState:
    """Handles a question that was decided before. The same decision returns the execution, and continues it if it was
    interrupted; a different one raises `AlreadyDecided`.
    """
    question, decision = suspension.question, suspension.decision
    if decision is None or decision.approved != approved:
        verdict = "approved" if decision is not None and decision.approved else "rejected"
        if decision is None or suspension.status != "decided":
            verdict = suspension.status.replace("_", " ")
        raise AlreadyDecided(
            f"suspension {question.suspension_id!r} was {verdict} before, and its execution is {execution.status}; "
            f"see `{session.context.command('show', execution.thread_id)}`"
        )
    session.terminal.say(f"It was {'approved' if approved else 'rejected'} before; the first answer stands.")
    if execution.status != "running":
        return execution
    session.context.check_tools(execution)
    _hide_settled_steps(session.terminal, execution)
    same = Decision(approved=approved, modified_args=decision.modified_args, content=decision.content)
    return session.answer(session.build_view(execution, suspension), same)


def _hide_settled_steps(terminal: Terminal, execution: ExecutionState) -> None:
    """Draw only the steps that change now; `planwarden show` draws the earlier ones."""
    settled = (name for name, state in execution.steps.items() if state.status in ("completed", "failed", "skipped"))
    terminal.screen.settled |= {(execution.execution_id, name) for name in settled}
