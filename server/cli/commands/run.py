"""The commands `run`, `run-goal` and `retry`, which start an execution and ask its questions here, and `cancel`.

`cancel` stops an execution, and says what is completed. It never guesses which execution is meant.
"""

from argparse import Namespace
from collections.abc import Mapping
from functools import partial

from pydantic import JsonValue

from planwarden.agent.common.errors import ThreadBusy, UsageError
from planwarden.agent.core.execution.rehearsal import needs_model
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.core.execution.state import ExecutionState, StepStatus
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.store import Header, Lookups
from planwarden.agent.runtime.log_reader import find_execution, load_execution
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.home import Home
from planwarden.server.api.limits import check_key
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import add_inputs, add_plan_arguments
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.plan_source import GivenPlan, choose_plan, read_given_inputs
from planwarden.server.cli.session import MODEL_ADVICE, CliSession, open_session
from planwarden.server.cli.terminal.lines import MAX_LISTED, TerminalLine, join_names, one_line
from planwarden.server.cli.terminal.terminal import Terminal, confirm
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.tools.registry import Registry

NEWEST = 100
"""How many of the newest executions are searched for running ones; waiting ones are found without that."""
GROUPS: Mapping[str, tuple[StepStatus, ...]] = {
    "Completed, and not undone": ("completed",),
    "Failed or rejected": ("failed", "rejected"),
    "Not completed": ("pending", "in_progress", "suspended", "skipped"),
}


def add_run(parser: CommandParser) -> None:
    parser.handle(handle_run, uses_servers=True)
    add_plan_arguments(parser)
    text = (
        "approve every call and confirmation except critical ones, and without a terminal except dangerous ones; "
        "forms are still asked"
    )
    parser.add_argument("--yes", action="store_true", help=text)
    text = "only call what reads, and show what every other call would do and whom it would ask"
    parser.add_argument("--rehearse", action="store_true", help=text)
    text = "idempotency key, 1 to 200 characters: run again with the same key, it goes on with the run that it began"
    parser.add_argument("--key", metavar="KEY", help=text)


def add_run_goal(parser: CommandParser) -> None:
    parser.handle(handle_run_goal, uses_servers=True)
    parser.add_argument("goal", metavar="GOAL", help="the goal, as one argument")
    parser.add_argument("--yes", action="store_true", help="as for run")
    parser.add_argument("--key", metavar="KEY", help="as for run")


def add_retry(parser: CommandParser) -> None:
    parser.handle(handle_retry, uses_servers=True)
    parser.add_argument("thread", metavar="THREAD", help="its threadId, or the beginning of one")
    text = "run this step again, and everything that depends on it"
    parser.add_argument("--from", dest="from_step", metavar="STEP", help=text)
    parser.add_argument("--plan", metavar="PLAN", help="another plan for what is left, as for run")
    add_inputs(parser, "another value for an input; the others stay as they were. Written as for run")
    text = "idempotency key, 1 to 200 characters: again with the same key, it goes on with what that one started"
    parser.add_argument("--key", metavar="KEY", help=text)
    parser.add_argument("--yes", action="store_true", help="as for run")


def handle_run(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        plan = choose_plan(session.home, arguments.plan, has_key=arguments.key is not None)
        inputs = read_given_inputs(arguments, plan.document)
        options: dict[str, JsonValue] = {"rehearse": True} if arguments.rehearse else {}
        return session.finish(arguments, run_plan(session, plan, inputs, arguments.key, options))


def handle_run_goal(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        # planwarden does not ask the person at the terminal to make the plan.
        if isinstance(session.home.model, CallerModel):
            raise UsageError(f"a goal needs a model that makes the plan. {MODEL_ADVICE}")

        async def start(service: Service) -> ExecutionState:
            await _report_known_key(session, service, arguments.key)
            return await service.run_goal(arguments.goal, StartOptions(requester=Requester(LOCAL), key=arguments.key))

        return session.finish(arguments, session.run_to_end(start))


def handle_retry(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        other = None if arguments.plan is None else choose_plan(session.home, arguments.plan).document
        return session.finish(arguments, session.run_to_end(lambda service: _retry(session, service, arguments, other)))


def run_plan(
    session: CliSession,
    plan: GivenPlan,
    inputs: Mapping[str, JsonValue] | None = None,
    key: str | None = None,
    options: Mapping[str, JsonValue] | None = None,
) -> ExecutionState:
    """Run a plan until it ends or a question is left open; with a known `key`, goes on with the run that it began."""

    async def start(service: Service) -> ExecutionState:
        if not await _report_known_key(session, service, key) and plan.document is not None:
            await _check_needs_no_model(session.home, service, plan.document)
        requester = Requester(LOCAL, is_operator=plan.name is None)
        options_of_start = StartOptions(requester=requester, key=key, goal=plan.goal, inputs=inputs, options=options)
        if plan.name is not None:
            execution = await service.run_plan(plan.name, options_of_start)
        else:
            execution = await service.execute_plan(plan.document, options_of_start)
        for warning in execution.warnings:
            session.terminal.say(TerminalLine((escape_text(warning), "warn"), mark="note"))
        return execution

    return session.run_to_end(start)


async def _retry(session: CliSession, service: Service, arguments: Namespace, other: JsonValue) -> ExecutionState:
    """Go on from the thread's last execution, with the other plan if there is one."""
    advice = f"`{session.home.command('list')}` lists the newest ones"
    last = (await session.home.find_thread(service.store, arguments.thread, advice))[-1]
    source = await service.find(last.execution_id)
    declaration: JsonValue = None if source.plan is None else {"inputs": source.plan.inputs}
    inputs = read_given_inputs(arguments, declaration if other is None else other)
    await _report_known_key(session, service, arguments.key, last.principal)
    try:
        requester = Requester(last.principal, is_operator=other is not None)
        options = StartOptions(requester=requester, key=arguments.key, inputs=inputs or None)
        execution = await service.retry(last.thread_id, options, from_step=arguments.from_step, plan=other)
    except ThreadBusy as error:
        busy = await service.find(last.execution_id)
        raise UsageError(_describe_busy(session.home, busy), details=error.details) from None
    reused_steps = [name for name, state in execution.steps.items() if state.taken_from is not None]
    if reused_steps:
        text = f"Completed before, and not run again: {join_names(reused_steps)}."
        session.terminal.say(TerminalLine((text, "dim")))
    return execution


async def _report_known_key(session: CliSession, service: Service, key: str | None, principal: str = LOCAL) -> bool:
    """Say that nothing new starts, if the key has started something."""
    if key is None:
        return False
    check_key(key)
    start = await service.store.find_start(principal, key)
    if start is None:
        return False
    text = f"Key {key!r} has started this before; nothing new was started."
    session.terminal.say(TerminalLine((text, "dim")))
    return True


async def _check_needs_no_model(home: Home, service: Service, plan: JsonValue) -> None:
    """Raise `UsageError` before anything runs when steps need a model and none is configured."""
    if not isinstance(home.model, CallerModel):
        return
    checked = await service.check_plan(plan, principal=LOCAL)
    step_ids = [step.step_id for step in checked.plan.steps if needs_model(step)]
    if step_ids:
        names = ", ".join(map(repr, step_ids[:10]))
        raise UsageError(f"step(s) {names} do not list all their toolCalls, so they need a model. {MODEL_ADVICE}")


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


def add_cancel(parser: CommandParser) -> None:
    parser.handle(handle_cancel, uses_servers=True)
    text = "its threadId, or the beginning of one; without it, the command only lists what can be cancelled"
    parser.add_argument("thread", metavar="THREAD", nargs="?", help=text)
    parser.add_argument("--reason", metavar="TEXT", help="reason for the record")
    text = "do not ask; a terminal asks when something has had its effect"
    parser.add_argument("--yes", action="store_true", help=text)


def handle_cancel(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        return _cancel(session, arguments)


def _cancel(session: CliSession, arguments: Namespace) -> int:
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
        session.terminal.say(f"These steps have had an effect, and cancelling does not undo it: {join_names(effects)}.")
        if not confirm(session.terminal, "Cancel the rest?", says_yes=session.says_yes):
            session.terminal.say("Nothing was cancelled.")
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
    """Return what waits, oldest first, and what runs; at most `MAX_LISTED`."""
    rows = (await store.suspensions(limit=MAX_LISTED)).rows
    headers = await store.executions(None, NEWEST)
    ids = dict.fromkeys([*(row.execution_id for row in rows), *(header.execution_id for header in headers)])
    executions = [await find_execution(store, execution_id) for execution_id in ids]
    return [execution for execution in executions if not execution.is_finished][:MAX_LISTED]


def _find_effects(execution: ExecutionState, tools: Registry) -> list[str]:
    """Return the steps whose calls may have changed something; a tool that is not known here counts."""
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
    terminal.say(TerminalLine(("Unfinished:", "bold")))
    for execution in executions:
        summary = one_line(execution.goal or "; ".join(s.step.description for s in execution.steps.values()), 100)
        facts = (f"  {execution.status}  {summary}", "dim")
        terminal.say(TerminalLine((shorten_id(execution.thread_id), "bold"), facts, mark="asks"))


def _draw_steps(terminal: Terminal, execution: ExecutionState) -> None:
    for title, statuses in GROUPS.items():
        steps = [state.step.step_id for state in execution.steps.values() if state.status in statuses]
        if steps:
            terminal.say(f"{title}: {join_names(steps)}.")
    states = execution.steps.values()
    unknown = [s.step.step_id for s in states if any(call.status == "outcome_unknown" for call in s.list_open_calls())]
    if unknown:
        text = f"Nobody knows whether a call happened: {join_names(unknown)}. A retry asks first."
        terminal.say(TerminalLine((text, "warn")))
