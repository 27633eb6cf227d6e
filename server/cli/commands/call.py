"""The command `call`: one tool as a plan of one step, so that it is checked, asked about and recorded like any other call."""

import json
from collections.abc import Sequence

from pydantic import JsonValue

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, UnknownTool
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.api.service import Service
from planwarden.server.auth.settings import LOCAL
from planwarden.server.cli.commands.run import CliSession
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.facts import escape_text

STEP = "call"
MAX_LINES = 200

Given = tuple[dict[str, JsonValue], tuple[tuple[str, str], ...]]
"""Arguments as JSON, and those whose form is still to be found: name and text."""


def read_arguments(pairs: Sequence[str], document: str | None) -> Given:
    """What `--arg` and `--json-args` say. Raises `InvalidArguments`."""
    whole: JsonValue = {} if document is None else read_json(document)
    if not isinstance(whole, dict):
        raise InvalidArguments("--json-args is not a JSON object")
    named: list[tuple[str, str]] = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidArguments(f"--arg {pair[:80]!r} is not NAME=VALUE")
        named.append((name, text))
    return whole, tuple(named)


def call_tool(desk: CliSession, name: str, given: Given) -> ExecutionState:
    """Run the one call to its end, or to a question that nobody answers here.

    Raises:
        UnknownTool: there is no such tool, or it is not available.
    """

    async def start(service: Service) -> ExecutionState:
        await service.tools_known([name])
        definition = desk.home.tools.get(name)
        if definition is None or definition.unavailable is not None:
            why = (
                desk.home.downstream.unavailable_reason(name)
                or (definition and definition.unavailable)
                or "there is none"
            )
            raise UnknownTool(f"cannot call {name[:128]!r}: {why}; see `{desk.home.command('tools')}`")
        arguments = {**given[0], **{key: _typed(definition, key, text) for key, text in given[1]}}
        view = await service.execute_plan(_plan(name, arguments), wait_seconds=0, principal=LOCAL)
        execution = await service.engine.find(view.execution_id)
        return execution

    with desk.kept() as kept:
        return kept.converse(kept.follow(start))


def draw_result(terminal: Terminal, execution: ExecutionState) -> None:
    """The whole result, escaped line by line, so that it can be read and copied."""
    state = execution.steps.get(STEP)
    if state is None or state.status != "completed":
        return
    found = state.result
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, indent=2)
    lines = text.splitlines()
    terminal.say(*(escape_text(line) for line in lines[:MAX_LINES]))
    if len(lines) > MAX_LINES:
        terminal.say(TerminalLine(((f"{len(lines) - MAX_LINES} more lines; --json prints everything", "dim"),)))


def _plan(name: str, arguments: dict[str, JsonValue]) -> JsonValue:
    return {
        "todoList": [
            {
                "id": STEP,
                "description": f"Call {one_line(name, 64)}",
                "requiredTools": [name],
                "toolCalls": [{"toolName": name, "arguments": arguments}],
            }
        ]
    }


def _typed(definition: ToolDefinition, key: str, text: str) -> JsonValue:
    """The text itself where the tool takes text; else the JSON that it is, if it is any."""
    properties = definition.input_schema.get("properties")
    entry = properties.get(key) if isinstance(properties, dict) else None
    if isinstance(entry, dict) and entry.get("type") == "string":
        return text
    try:
        return read_json(text)
    except InvalidArguments:
        return text
