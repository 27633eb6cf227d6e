"""The command `retry`: goes on from the last execution of a thread, and asks its questions at this terminal."""

from argparse import Namespace

from pydantic import JsonValue

from planwarden.agent.common.errors import ThreadBusy, UsageError
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import add_inputs
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.commands.run import report_known_key
from planwarden.server.cli.plan_source import choose_plan, read_inputs_file, read_typed_inputs
from planwarden.server.cli.session import CliSession, open_session
from planwarden.server.cli.terminal.lines import TerminalLine, one_line

MAX_LISTED = 20


def add_retry(parser: CommandParser) -> None:
    parser.handle(handle_retry, uses_servers=True)
    parser.add_argument("thread", metavar="THREAD", help="its threadId, or the beginning of one")
    parser.add_argument(
        "--from", dest="from_step", metavar="STEP", help="run this step again, and everything that depends on it"
    )
    parser.add_argument("--plan", metavar="PLAN", help="another plan for what is left, as for run")
    add_inputs(parser, "another value for an input; the others stay as they were. Written as for run")
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="idempotency key, 1 to 200 characters: again with the same key, it goes on with what that one started",
    )
    parser.add_argument("--yes", action="store_true", help="as for run")


def handle_retry(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        return session.finish(arguments, retry(session, arguments))


def retry(session: CliSession, arguments: Namespace) -> ExecutionState:
    """Go on from the thread's last execution until the new one ends or a question is left open."""
    other = None if arguments.plan is None else choose_plan(session.home, arguments.plan).document
    file_inputs = read_inputs_file(arguments)

    async def start(service: Service) -> ExecutionState:
        advice = f"`{session.home.command('list')}` lists the newest ones"
        last = (await session.home.find_thread(service.store, arguments.thread, advice))[-1]
        principal = last.principal
        source = await service.find(last.execution_id)
        declaration: JsonValue = None if source.plan is None else {"inputs": source.plan.inputs}
        inputs = {**file_inputs, **read_typed_inputs(arguments, declaration if other is None else other)}
        await report_known_key(session, service, arguments.key, principal)
        try:
            requester = Requester(principal, is_operator=other is not None)
            options = StartOptions(requester=requester, key=arguments.key, inputs=inputs or None)
            execution = await service.retry(last.thread_id, options, from_step=arguments.from_step, plan=other)
        except ThreadBusy as error:
            busy = await service.find(last.execution_id)
            raise UsageError(_describe_busy(session.home, busy), details=error.details) from None
        reused_steps = [one_line(name, 64) for name, state in execution.steps.items() if state.taken_from is not None]
        if reused_steps:
            more = f" and {len(reused_steps) - MAX_LISTED} more" if len(reused_steps) > MAX_LISTED else ""
            text = f"Completed before, and not run again: {', '.join(reused_steps[:MAX_LISTED])}{more}."
            session.terminal.say(TerminalLine(((text, "dim"),)))
        return execution

    return session.run_to_end(start)


def _describe_busy(home: Home, last: ExecutionState) -> str:
    """Say why the thread cannot be retried now, with commands that lead on."""
    cancel = f"`{home.command('cancel', last.thread_id)}` stops it"
    questions = (item.question for item in last.open_suspensions if item.question.addressee == "human")
    question = next(questions, None)
    if question is not None:
        approve = home.command("approve", question.suspension_id)
        return f"the thread waits for an answer, so there is nothing to retry; `{approve}` answers it, {cancel}"
    if last.status != "running":
        return f"the thread's last execution is {last.status}, so there is nothing to retry; {cancel}"
    return (
        f"the thread's last execution is running; if the process that ran it is gone, any server of this home "
        f"(an assistant's, or `{home.command('serve')}`) goes on with it; {cancel}, then retry goes on with the rest"
    )
