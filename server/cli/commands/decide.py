"""The commands `approve` and `reject`: decide on one question, and continue its execution.

Both return 0 if the decision was recorded, even if the released call fails later. `approve` without an id asks about
every question that waits for a person, one by one.

Without a terminal, a person approves with --code and --digest. The code comes from `planwarden inbox`, says who
approves, and is valid once. The digest says which revision the person read, so that no later revision is approved.
"""

import time
from argparse import Namespace
from functools import partial

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import (
    AlreadyDecided,
    Expired,
    InvalidArguments,
    PlanwardenError,
    StaleRevision,
    UsageError,
)
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.agent.ports.store import Lookups, SuspensionRowPage
from planwarden.agent.runtime.log_reader import find_execution
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.output import DONE, WAITING, print_json, replace_tools_by_commands
from planwarden.server.cli.session import CliSession, check_tools, open_session
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.inbox.passphrase import InboxPassphrase
from planwarden.server.inbox.sessions import InboxAccess
from planwarden.server.settings.configuration import find_operator
from planwarden.server.settings.secrets import find_secrets
from planwarden.server.views.suspension import Suspension

PATIENCE_S = 60.0
"""The longest that these commands wait, in seconds, for an execution that continues at a set time."""
NEEDS_TERMINAL = (
    "approving needs a terminal where a person can read the question and type the answer, and there is none here; run "
    "it in a terminal, decide in the inbox, or give an id with --code and --digest"
)
DecisionResult = tuple[ExecutionState, bool]
"""The execution after a question was shown, and whether the person's decision on the question is recorded."""


def add_approve(parser: CommandParser) -> None:
    parser.handle(handle_approve, uses_servers=True)
    text = "id of the question, or the beginning of it; default: all open questions, one by one"
    parser.declare("suspension QUESTION", text, nargs="?")
    parser.declare("--code CODE", "where there is no terminal: a code from `planwarden inbox`")
    parser.declare("--digest DIGEST", "with --code: digest of the question that you read")


def add_reject(parser: CommandParser) -> None:
    parser.handle(handle_reject, uses_servers=True)
    parser.declare("suspension QUESTION", "id of the question, or the beginning of it")
    parser.declare("--reason TEXT", "reason that the model receives")


def handle_approve(arguments: Namespace) -> int:
    has_code = arguments.code is not None
    if has_code != (arguments.digest is not None) or (has_code and arguments.suspension is None):
        raise UsageError("an id, --code and --digest go together: they name the question, the person and what was read")
    with open_session(arguments, patience_s=PATIENCE_S) as session:
        if arguments.suspension is None:
            return _approve_all(session, arguments)
        if has_code:
            result = _approve_with_code(session, arguments.suspension, arguments.code, arguments.digest)
            return _finish(session, arguments, result)
        return _finish(session, arguments, approve(session, arguments.suspension))


def handle_reject(arguments: Namespace) -> int:
    with open_session(arguments, patience_s=PATIENCE_S) as session:
        return _finish(session, arguments, reject(session, arguments.suspension, arguments.reason))


def _finish(session: CliSession, arguments: Namespace, result: DecisionResult) -> int:
    execution, is_recorded = result
    code = session.finish(arguments, execution)
    own = [suspension for suspension in execution.open_suspensions if suspension.question.addressee == "human"]
    others = _read_waiting(session.home, None).total - len(own)
    if others > 0:
        words = "1 other question waits" if others == 1 else f"{others} other questions wait"
        text = f"{words} for a person: {session.home.command('approve')} asks about them, one by one"
        session.terminal.line((text, "dim"), mark="asks")
    return DONE if is_recorded else code


def _approve_all(session: CliSession, arguments: Namespace) -> int:
    """Ask about every open question, oldest first, and about those that come up in the meantime."""
    decided: list[str] = []
    last: str | None = None
    while (page := _read_waiting(session.home, last)).rows:
        session.terminal.check_can_ask(NEEDS_TERMINAL)
        if last is None:
            session.terminal.line((f"{page.total} waiting, oldest first; Enter leaves one open, Ctrl-C stops.", "bold"))
        [row] = page.rows
        last = row.suspension_id
        try:
            execution, is_recorded = approve(session, last)
        except PlanwardenError as error:
            # Somebody else may have decided this question in the meantime; ask about the others anyway.
            session.terminal.line((replace_tools_by_commands(error.message), "warn"), mark="note")
            continue
        if is_recorded:
            decided.append(last)
            session.draw_outcome(execution)
    open_count = _read_waiting(session.home, None).total
    if last is None:
        session.terminal.line(("Nothing waits for a person.", "good"), mark="done")
    else:
        session.terminal.say(f"{len(decided)} decided, {open_count} left open.")
    if arguments.json:
        print_json({"decided": [*decided], "open": open_count})
    return WAITING if open_count else DONE


def _read_waiting(home: Home, after: str | None) -> SuspensionRowPage:
    """Return how many questions wait for a person, and the oldest of those asked after the question `after`."""
    return home.read(lambda store: store.suspensions(addressee="human", limit=1, cursor=after))


def approve(session: CliSession, beginning: str) -> DecisionResult:
    """Ask the person at the terminal about one question, and continue its execution.

    Raises:
        UsageError: nobody can be asked here, or the question cannot be answered at a terminal.
        AlreadyDecided: the question was decided differently before.
    """
    execution, question_state, owner = _read_suspension(session.home, beginning)
    suspension_id = question_state.question.suspension_id
    if not question_state.is_open:
        return _repeat_decision(session, execution, question_state, approved=True)
    if question_state.question.addressee != "human":
        answerer = "the clock" if question_state.question.addressee == "clock" else "the calling model"
        raise UsageError(f"question {suspension_id!r} is not for a person; it waits for {answerer}")
    if question_state.question.expires_at is not None and question_state.question.expires_at <= time.time():
        session.terminal.line(("The time to answer has passed.", "warn"), mark="note")
        start = partial(session.record_time_out, execution_id=execution.execution_id)
        return session.run_and_watch(start), False
    session.terminal.check_can_ask(NEEDS_TERMINAL)
    check_tools(session.home, execution)
    suspension = session.build_view(execution, question_state)
    if not session.can_approve(suspension, owner):
        return execution, False
    decision, _ = session.ask(suspension)
    if decision is None:
        session.terminal.say("Nothing was decided; the question stays open.")
        return execution, False
    _hide_settled_steps(session.terminal, execution)
    return _build_result(session.answer(suspension, decision), question_state)


def reject(session: CliSession, beginning: str, reason: str | None) -> DecisionResult:
    """Reject one question and continue its execution. Every operator may reject. If this process lacks the tools, it
    only records the rejection, and a process that has them continues.

    Raises:
        AlreadyDecided: the question was decided differently before.
    """
    execution, question_state, _ = _read_suspension(session.home, beginning)
    if not question_state.is_open:
        return _repeat_decision(session, execution, question_state, approved=False)
    suspension = session.build_view(execution, question_state)
    decision = Decision(approved=False, reason=reason)
    _hide_settled_steps(session.terminal, execution)
    try:
        check_tools(session.home, execution)
    except UsageError:
        # Another process continues the execution.
        recorded = session.home.run(lambda service: session.record(service, suspension, decision), "recorder")
        return _build_result(recorded, question_state)
    return _build_result(session.answer(suspension, decision), question_state)


def _build_result(execution: ExecutionState, before: SuspensionState, person: str = "") -> DecisionResult:
    """Return the result of a decision by `person`, by default the operator. A vote counts even if more are needed."""
    after, voter = execution.suspensions[before.question.suspension_id], person or find_operator()
    has_voted = after.is_open and any(vote.principal == voter for vote in after.endorsements)
    return execution, has_voted or after.status == "decided"


def _read_suspension(home: Home, beginning: str) -> tuple[ExecutionState, SuspensionState, str]:
    """Return the suspension whose id starts with `beginning`, its execution, and the principal that owns both."""

    async def read(store: Lookups) -> tuple[ExecutionState, SuspensionState, str]:
        row = await home.find_suspension(store, beginning)
        execution = await find_execution(store, row.execution_id)
        return execution, execution.suspensions[row.suspension_id], row.principal

    return home.read(read)


def _repeat_decision(
    session: CliSession, execution: ExecutionState, suspension: SuspensionState, *, approved: bool
) -> DecisionResult:
    """Return the result for a question that was decided before. If the decision is the same, also continue an execution
    that was interrupted. Raise `AlreadyDecided` if the decision is different.
    """
    question, decision = suspension.question, suspension.decision
    if decision is None or decision.approved != approved:
        verdict = "approved" if decision is not None and decision.approved else "rejected"
        if decision is None or suspension.status != "decided":
            verdict = suspension.status.replace("_", " ")
        raise AlreadyDecided(
            f"question {question.suspension_id!r} was {verdict} before, and its execution is {execution.status}; "
            f"see `{session.home.command('show', execution.thread_id)}`"
        )
    session.terminal.say(f"It was {'approved' if approved else 'rejected'} before; the first answer counts.")
    if execution.status != "running":
        return execution, True
    check_tools(session.home, execution)
    _hide_settled_steps(session.terminal, execution)
    same = Decision(approved=approved, modified_args=decision.modified_args, content=decision.content)
    return session.answer(session.build_view(execution, suspension), same), True


def _hide_settled_steps(terminal: Terminal, execution: ExecutionState) -> None:
    """Draw only the steps that change now; `planwarden show` draws the earlier ones."""
    settled = (name for name, state in execution.steps.items() if state.status in ("completed", "failed", "skipped"))
    terminal.settled |= {(execution.execution_id, name) for name in settled}


def _approve_with_code(session: CliSession, beginning: str, code: str, digest: str) -> DecisionResult:
    """Approve exactly the revision with this digest, as the person whom the code names; continue the execution."""
    home, person = session.home, ""

    settings = home.settings
    if home.run(lambda service: InboxPassphrase(settings, find_secrets(settings, service.store)).is_asked(), "reader"):
        raise UsageError("the inbox asks for a passphrase in addition to a code, so approve there or in a terminal")
    execution, question_state, _ = _read_suspension(home, beginning)
    suspension = session.build_view(execution, question_state)
    if suspension.addressee != "human":
        raise UsageError(f"question {suspension.suspension_id!r} is not for a person")
    _check_digest(home, suspension, digest)
    if not question_state.is_open:
        return _repeat_decision(session, execution, question_state, approved=True)
    if suspension.answer_schema is not None:
        raise UsageError("this question asks for more than yes; answer it in the inbox or in a terminal")
    if suspension.expires_at is not None and suspension.expires_at.timestamp() <= time.time():
        raise Expired(f"the time to answer question {suspension.suspension_id!r} has passed")
    check_tools(home, execution)
    terminal_question.show(session.terminal, suspension.card, is_shortened=False)

    async def start(service: Service) -> ExecutionState:
        nonlocal person
        # Redeem the code last, so that no other mistake uses it up. The session that it opens is not needed.
        access = InboxAccess(service.store)
        opened = await access.redeem(code)
        person = opened.session.principal
        await access.end_session(opened.token, person)
        return await session.record(service, suspension, Decision(approved=True), "code", person)

    result = _build_result(session.run_and_watch(start), question_state, person)
    if not result[1]:
        text = f"The approval of {person!r} is not enough for this; the question stays open."
        session.terminal.line((text, "warn"), mark="note")
    return result


def _check_digest(home: Home, suspension: Suspension, digest: str) -> None:
    digest = digest.strip().lower()
    least = terminal_question.MIN_DIGEST_CHARS
    if len(digest) < least:
        command = home.command("show", suspension.thread_id)
        raise InvalidArguments(f"--digest takes at least {least} digits, as `{command}` shows them")
    if not suspension.digest.startswith(digest):
        raise StaleRevision(
            f"question {suspension.suspension_id!r} is not what that digest names; it may have been revised: "
            "read it again"
        )
