"""The commands `run` and `run-goal`: run a plan, and ask its questions at this terminal."""

from argparse import Namespace
from collections.abc import Mapping

from pydantic import JsonValue

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.execution.rehearsal import needs_model
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.home import Home
from planwarden.server.api.limits import check_key
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import add_plan_arguments
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.plan_source import GivenPlan, choose_plan, read_given_inputs
from planwarden.server.cli.session import MODEL_ADVICE, CliSession, open_session
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.views.escaping import escape_text


def add_run(parser: CommandParser) -> None:
    parser.handle(handle_run, uses_servers=True)
    add_plan_arguments(parser)
    parser.add_argument(
        "--yes",
        action="store_true",
        help="approve every call and confirmation except critical ones, and without a terminal except dangerous ones; "
        "forms are still asked",
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="only call what reads, and show what every other call would do and whom it would ask",
    )
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="idempotency key, 1 to 200 characters: run again with the same key, it goes on with the run that it began",
    )


def add_run_goal(parser: CommandParser) -> None:
    parser.handle(handle_run_goal, uses_servers=True)
    parser.add_argument("goal", metavar="GOAL", help="the goal, as one argument")
    parser.add_argument("--yes", action="store_true", help="as for run")
    parser.add_argument("--key", metavar="KEY", help="as for run")


def handle_run(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        plan = choose_plan(session.home, arguments.plan, has_key=arguments.key is not None)
        inputs = read_given_inputs(arguments, plan.document)
        options: dict[str, JsonValue] = {"rehearse": True} if arguments.rehearse else {}
        return session.finish(arguments, run_plan(session, plan, inputs, arguments.key, options))


def handle_run_goal(arguments: Namespace) -> int:
    with open_session(arguments, says_yes=arguments.yes) as session:
        return session.finish(arguments, run_goal(session, arguments.goal, arguments.key))


def run_plan(
    session: CliSession,
    plan: GivenPlan,
    inputs: Mapping[str, JsonValue] | None = None,
    key: str | None = None,
    options: Mapping[str, JsonValue] | None = None,
) -> ExecutionState:
    """Run a plan until it ends or a question is left open; with a known `key`, goes on with the run that it began."""

    async def start(service: Service) -> ExecutionState:
        if not await report_known_key(session, service, key) and plan.document is not None:
            await _check_needs_no_model(session.home, service, plan.document)
        requester = Requester(LOCAL, is_operator=plan.name is None)
        options_of_start = StartOptions(requester=requester, key=key, goal=plan.goal, inputs=inputs, options=options)
        if plan.name is not None:
            execution = await service.run_plan(plan.name, options_of_start)
        else:
            execution = await service.execute_plan(plan.document, options_of_start)
        for warning in execution.warnings:
            session.terminal.say(TerminalLine(((escape_text(warning), "warn"),), "note"))
        return execution

    return session.run_to_end(start)


def run_goal(session: CliSession, goal: str, key: str | None = None) -> ExecutionState:
    """Make a plan for the goal with the configured model, and runs it as `run_plan` does.

    Raises:
        UsageError: no model is configured. planwarden does not ask the person at the terminal to make the plan.
    """
    if isinstance(session.home.model, CallerModel):
        raise UsageError(f"a goal needs a model that makes the plan. {MODEL_ADVICE}")

    async def start(service: Service) -> ExecutionState:
        await report_known_key(session, service, key)
        return await service.run_goal(goal, StartOptions(requester=Requester(LOCAL), key=key))

    return session.run_to_end(start)


async def report_known_key(session: CliSession, service: Service, key: str | None, principal: str = LOCAL) -> bool:
    """Say that nothing new starts, if the key has started something."""
    if key is None:
        return False
    check_key(key)
    start = await service.store.find_start(principal, key)
    if start is None:
        return False
    text = f"Key {key!r} has started this before; nothing new was started."
    session.terminal.say(TerminalLine(((text, "dim"),)))
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
