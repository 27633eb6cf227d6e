"""The command `call`: runs one tool as a plan of one step, with the same checks, questions and record as any plan."""

import json
from argparse import Namespace
from collections.abc import Callable

from pydantic import JsonValue

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, UnknownTool
from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import CommandParser, read_value, split_pairs
from planwarden.server.cli.session import open_session
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.escaping import escape_text

STEP = "call"
MAX_LINES = 200


def add_call(parser: CommandParser) -> None:
    parser.handle(handle_call, uses_servers=True)
    parser.declare("tool TOOL", "name of the tool, as `planwarden tools` lists it")
    text = "an argument; the value is JSON, or text where the tool takes text"
    parser.declare("--arg NAME=VALUE", text, action="append", default=[])
    parser.declare("--json-args JSON", "all arguments as one JSON object; --arg adds to it")
    parser.declare("--yes", "as for run")


def handle_call(arguments: Namespace) -> int:
    resolve, name = read_arguments(arguments), arguments.tool
    with open_session(arguments, says_yes=arguments.yes) as session:
        home = session.home

        async def start(service: Service) -> ExecutionState:
            await service.wait_for_tools([name])
            definition = home.tools.get(name)
            if definition is None or definition.unavailable is not None:
                reason = (
                    home.downstream.unavailable_reason(name)
                    or (definition and definition.unavailable)
                    or f"there is none{did_you_mean(name, (tool.name for tool in home.tools.definitions()))}"
                )
                raise UnknownTool(f"cannot call {name[:128]!r}: {reason}; see `{home.command('tools')}`")
            plan = _build_plan(name, resolve(definition))
            return await service.execute_plan(plan, StartOptions(requester=Requester(LOCAL, is_operator=True)))

        execution = session.run_to_end(start)
        if not arguments.json:
            draw_result(session.terminal, execution)
        return session.finish(arguments, execution)


def read_arguments(arguments: Namespace) -> Callable[[ToolDefinition], dict[str, JsonValue]]:
    """Return a function that joins --json-args and --arg, and reads --arg as text where the tool takes text."""
    document = {} if arguments.json_args is None else read_json(arguments.json_args)
    if not isinstance(document, dict):
        raise InvalidArguments("--json-args is not a JSON object")
    pairs = list(split_pairs(arguments.arg))

    def resolve(definition: ToolDefinition) -> dict[str, JsonValue]:
        schemas = read_properties(definition.input_schema)
        values: dict[str, JsonValue] = {}
        for name, text in pairs:
            schema = schemas.get(name)
            is_text = isinstance(schema, dict) and schema.get("type") == "string"
            values[name] = text if is_text else read_value(text)
        return {**document, **values}

    return resolve


def draw_result(terminal: Terminal, execution: ExecutionState) -> None:
    """Draw the result of a completed call, escaped, line by line, so that people can read and copy it."""
    state = execution.steps.get(STEP)
    if state is None or state.status != "completed":
        return
    result = state.result
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, indent=2)
    lines = text.splitlines()
    terminal.say(*(escape_text(line) for line in lines[:MAX_LINES]))
    if len(lines) > MAX_LINES:
        terminal.line((f"{len(lines) - MAX_LINES} more lines; --json prints everything", "dim"))


def _build_plan(name: str, arguments: dict[str, JsonValue]) -> JsonValue:
    calls: JsonValue = [{"toolName": name, "arguments": arguments}]
    return {"todoList": [{"id": STEP, "description": name, "requiredTools": [name], "toolCalls": calls}]}
