"""The commands `run` and `run-goal`: run a plan, and ask its questions at this terminal."""

import sys
from argparse import Namespace

from pydantic import JsonValue

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.agent.common.paths import expand_home
from planwarden.agent.core.plan import parse_plan, read_tool_names
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.server.api.limits import check_key
from planwarden.server.api.service import Service
from planwarden.server.auth.settings import LOCAL
from planwarden.server.cli.context import CliContext
from planwarden.server.cli.session import MODEL_ADVICE, CliSession
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.views.facts import escape_text

MAX_PLAN_BYTES = 16 * 1024 * 1024


def handle_run(arguments: Namespace) -> int:
    plan = read_plan(arguments.plan)
    session = CliSession.from_arguments(arguments, says_yes=arguments.yes)
    return session.finish(arguments, run_plan(session, plan, arguments.key))


def handle_run_goal(arguments: Namespace) -> int:
    session = CliSession.from_arguments(arguments, says_yes=arguments.yes)
    return session.finish(arguments, run_goal(session, arguments.goal, arguments.key))


def read_plan(path: str) -> JsonValue:
    """Returns the JSON in the file, or on standard input for `-`. Raises `InvalidArguments` that names the file."""
    source = "standard input" if path == "-" else repr(path)
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_PLAN_BYTES + 1)
        else:
            with expand_home(path).open("rb") as file:
                data = file.read(MAX_PLAN_BYTES + 1)
    except OSError as error:
        raise InvalidArguments(f"cannot read the plan {source}: {error.strerror}") from error
    if len(data) > MAX_PLAN_BYTES:
        raise InvalidArguments(f"the plan in {source} is larger than {MAX_PLAN_BYTES // 1024 // 1024} MiB")
    try:
        return read_json(data)
    except PlanwardenError as error:
        raise InvalidArguments(f"the plan in {source} is {error.message}") from error


def run_plan(session: CliSession, document: JsonValue, key: str | None = None) -> ExecutionState:
    """Runs a plan until it ends or a question is left open; with a known `key`, goes on with the run that it began."""

    async def start(service: Service) -> ExecutionState:
        if not await _report_known_key(session, service, key):
            await service.wait_for_tools(read_tool_names(document))
            _check_needs_no_model(session.context, service, document)
        view = await service.execute_plan(document, key=key, wait_seconds=0, principal=LOCAL)
        for warning in view.warnings:
            session.terminal.say(TerminalLine(((escape_text(warning), "warn"),), "note"))
        execution = await service.engine.find(view.execution_id)
        return execution

    return session.run_to_end(start)


def run_goal(session: CliSession, goal: str, key: str | None = None) -> ExecutionState:
    """Makes a plan for the goal with the configured model, and runs it as `run_plan` does.

    Raises:
        UsageError: no model is configured. planwarden does not ask the person at the terminal to make the plan.
    """
    if isinstance(session.context.model, CallerModel):
        raise UsageError(f"a goal needs a model that makes the plan. {MODEL_ADVICE}")

    async def start(service: Service) -> ExecutionState:
        await _report_known_key(session, service, key)
        view = await service.run_goal(goal, key=key, wait_seconds=0, principal=LOCAL)
        execution = await service.engine.find(view.execution_id)
        return execution

    return session.run_to_end(start)


async def _report_known_key(session: CliSession, service: Service, key: str | None) -> bool:
    """Says that nothing new starts, if the key has started something."""
    if key is None:
        return False
    check_key(key)
    found = await service.engine.store.find_start(LOCAL, key)
    if found is None:
        return False
    text = f"Key {key!r} has started this before; nothing new was started."
    session.terminal.say(TerminalLine(((text, "dim"),)))
    return True


def _check_needs_no_model(context: CliContext, service: Service, document: JsonValue) -> None:
    """Raises `UsageError` before anything runs when steps need a model and none is configured."""
    if not isinstance(context.model, CallerModel):
        return
    plan, _ = parse_plan(
        document, author="caller", tools=service.engine.tool_facts(), max_steps=context.settings.max_steps
    )
    step_ids = [
        step.step_id
        for step in plan.steps
        if not step.tool_calls or set(step.required_tools) - {call.tool_name for call in step.tool_calls}
    ]
    if step_ids:
        names = ", ".join(map(repr, step_ids[:10]))
        raise UsageError(f"step(s) {names} do not list all their toolCalls, so they need a model. {MODEL_ADVICE}")
