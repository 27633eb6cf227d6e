"""The commands `run`, `run-goal` and `retry`: start an execution, and ask its questions at this terminal."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial

from pydantic import JsonValue

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import ThreadBusy, UsageError
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.execution.verify import needs_model
from planwarden.agent.ports.model import CallerModel
from planwarden.agent.ports.store import StartedExecution
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.home import Home
from planwarden.server.api.limits import check_key
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.home import GivenPlan, add_inputs, add_plan_arguments, choose_plan, read_given_inputs
from planwarden.server.cli.output import replace_tools_by_commands
from planwarden.server.cli.session import MODEL_ADVICE, CliSession, open_session
from planwarden.server.cli.terminal.lines import join_names
from planwarden.server.views.escaping import escape_text


def add_run(parser: CommandParser) -> None:
    parser.handle(handle_run, uses_servers=True)
    add_plan_arguments(parser)
    text = (
        "approve every call and confirmation except critical ones and, without a terminal, dangerous ones; forms are "
        "still asked"
    )
    parser.declare("--yes", text)
    parser.declare("--rehearse", "make only calls that read; show what any other call would do, and whom it would ask")
    text = "idempotency key, 1 to 200 characters; a second run with the same key goes on with the first one"
    parser.declare("--key KEY", text)


def add_run_goal(parser: CommandParser) -> None:
    parser.handle(handle_run_goal, uses_servers=True)
    parser.declare("goal GOAL", "the goal, as one argument")
    parser.declare("--yes", "as for run")
    parser.declare("--key KEY", "as for run")


def add_retry(parser: CommandParser) -> None:
    parser.handle(handle_retry, uses_servers=True)
    parser.declare("thread THREAD", "its threadId, or the beginning of one")
    parser.declare("--from STEP", "run this step again, and everything that depends on it", dest="from_step")
    parser.declare("--plan PLAN", "another plan for the steps that are left, as for run")
    add_inputs(parser, "another value for an input; the others stay as they were. Written as for run")
    text = "idempotency key, 1 to 200 characters; a second retry with the same key goes on with the first one"
    parser.declare("--key KEY", text)
    parser.declare("--yes", "as for run")


def handle_run(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        plan = choose_plan(session.home, arguments.plan, has_key=arguments.key is not None)
        options: dict[str, JsonValue] = {"rehearse": True} if arguments.rehearse else {}
        read_inputs = partial(read_given_inputs, arguments)
        return session.finish(arguments, run_plan(session, plan, read_inputs, arguments.key, options))


def handle_run_goal(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        # With `CallerModel` the calling model makes the plan, but here the caller is a person and not a model.
        if isinstance(session.home.model, CallerModel):
            raise UsageError(f"a goal needs a model that makes the plan. {MODEL_ADVICE}")

        async def start(service: Service) -> ExecutionState:
            earlier = await _find_start(service, arguments.key)
            start = StartOptions(requester=Requester(LOCAL), key=arguments.key)
            return _report_start(session, earlier, await service.run_goal(arguments.goal, start), arguments.key)

        return session.finish(arguments, session.run_to_end(start))


def handle_retry(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        other = None if arguments.plan is None else choose_plan(session.home, arguments.plan).document
        return session.finish(arguments, session.run_to_end(lambda service: _retry(session, service, arguments, other)))


def run_plan(
    session: CliSession,
    plan: GivenPlan,
    read_inputs: Callable[[JsonValue], Mapping[str, JsonValue]] | None = None,
    key: str | None = None,
    options: Mapping[str, JsonValue] | None = None,
) -> ExecutionState:
    """Run a plan until it ends or a question stays open, and return its execution.

    If `key` has started a run before, go on with that run. `read_inputs` gets the plan and returns its typed inputs.
    """

    async def start(service: Service) -> ExecutionState:
        earlier = await _find_start(service, key)
        source = None if earlier is None else await service.find(earlier.execution_id)
        # The plan's file may have been changed or deleted since the key started the run.
        document = plan.document if source is None else _take_declaration(source)
        inputs = None if read_inputs is None else read_inputs(document)
        if plan.error is not None:
            if source is None or not is_same_json({**source.inputs, **(inputs or {})}, {**source.inputs}):
                raise plan.error
            return _report_start(session, earlier, source, key)
        if earlier is None and document is not None:
            await _check_needs_no_model(session.home, service, document)
        requester = Requester(LOCAL, is_operator=plan.name is None)
        options_of_start = StartOptions(requester=requester, key=key, goal=plan.goal, inputs=inputs, options=options)
        if plan.name is not None:
            execution = await service.run_plan(plan.name, options_of_start)
        else:
            execution = await service.execute_plan(plan.document, options_of_start)
        for warning in execution.warnings:
            text = replace_tools_by_commands(warning, session.home.program())
            session.terminal.line((escape_text(text), "warn"), mark="note")
        return _report_start(session, earlier, execution, key)

    return session.run_to_end(start)


async def _retry(session: CliSession, service: Service, arguments: Namespace, other: JsonValue) -> ExecutionState:
    """Retry the thread's last execution, with the plan `other` if given. Raise `UsageError` if the thread is busy."""
    last = (await session.home.find_thread(service.store, arguments.thread))[-1]
    source = await service.find(last.execution_id)
    inputs = read_given_inputs(arguments, _take_declaration(source) if other is None else other)
    earlier = await _find_start(service, arguments.key, last.principal)
    try:
        requester = Requester(last.principal, is_operator=other is not None)
        options = StartOptions(requester=requester, key=arguments.key, inputs=inputs or None)
        execution = await service.retry(last.thread_id, options, from_step=arguments.from_step, plan=other)
    except ThreadBusy as error:
        busy = await service.find(last.execution_id)
        raise UsageError(_describe_busy(session.home, busy), details=error.details) from None
    _report_start(session, earlier, execution, arguments.key)
    reused_steps = [name for name, state in execution.steps.items() if state.taken_from is not None]
    if reused_steps:
        session.terminal.line((f"Completed before, and not run again: {join_names(reused_steps)}.", "dim"))
    return execution


def _take_declaration(execution: ExecutionState) -> JsonValue:
    """Return a plan that has only the declared inputs of the execution's plan; None if the execution has no plan."""
    return None if execution.plan is None else {"inputs": execution.plan.inputs}


async def _find_start(service: Service, key: str | None, principal: str = LOCAL) -> StartedExecution | None:
    """Return the execution that an earlier command started with the key; None if there is none."""
    if key is None:
        return None
    check_key(key)
    return await service.store.find_start(principal, key)


def _report_start(
    session: CliSession, earlier: StartedExecution | None, execution: ExecutionState, key: str | None
) -> ExecutionState:
    """Return the execution. If `earlier` is given, tell the person that the key started nothing new."""
    if earlier is not None:
        session.terminal.line((f"Key {key!r} has started this before; nothing new was started.", "dim"))
    return execution


async def _check_needs_no_model(home: Home, service: Service, plan: JsonValue) -> None:
    """Raise `UsageError`, before anything runs, if a step needs a model and none is configured."""
    if not isinstance(home.model, CallerModel):
        return
    checked = await service.check_plan(plan, principal=LOCAL)
    step_ids = [step.step_id for step in checked.plan.steps if needs_model(step)]
    if step_ids:
        names = ", ".join(map(repr, step_ids[:10]))
        raise UsageError(f"these steps do not list all their toolCalls and need a model: {names}. {MODEL_ADVICE}")


def _describe_busy(home: Home, last: ExecutionState) -> str:
    """Return why the thread cannot be retried now, with commands that the person can use instead."""
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
