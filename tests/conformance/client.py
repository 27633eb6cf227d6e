"""The product as a client of the suite's servers: a home that names the server, a plan that calls its tools, and a person.

Every scenario gets a home of its own. The plan has one step for each of the server's tools, and no step waits for another,
so that one call is made while another one's question is open. The person approves every call and accepts what the
terminal's form offers. Nothing here speaks MCP.
"""

import io
import json
import logging
import sys
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx2
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import BaseModel, JsonValue

import planwarden
from planwarden.agent.common.errors import ToolError
from planwarden.server.cli.commands.login import found, logged_in
from planwarden.server.cli.terminal.form import fill_in
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.catalogue import build_downstream, build_registry
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.storage.memory.store import MemoryStore
from tests.support.wardens import plan, tool_step

logger = logging.getLogger(__name__)

RELAY = Path(__file__).with_name("relay.py")
SERVER = "peer"
WAIT_S = 25.0
AT_ONCE = 3
"""Scenarios; more would disturb the ones that measure time."""
LOGINS = 2
"""In one scenario: the server may want further rights for a call than for a listing."""
METADATA_URL = "https://conformance-test.local/client-metadata.json"
"""Of the suite, which never looks there."""
MAX_TASK_BYTES = 1024 * 1024
ECHO, FOCAL = f"{SERVER}_json_schema_echo", f"{SERVER}_json_schema_2020_12_tool"


class ToolCall(BaseModel):
    """A call that a scenario wants to see."""

    name: str
    arguments: dict[str, JsonValue]


class Context(BaseModel):
    """What a scenario tells its client."""

    toolCalls: list[ToolCall] = []
    client_id: str | None = None
    client_secret: str = ""


class Task(BaseModel):
    """One scenario of the suite, whose server is running."""

    url: str
    scenario: str
    revision: str
    context: Context = Context()


@asynccontextmanager
async def relayed(home: Path) -> AsyncGenerator[str]:
    """The command that plays a scenario, for as long as the block runs; homes are made in `home`."""
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def serve(stream: SocketStream) -> None:
        async with stream:
            line = await BufferedByteReceiveStream(stream).receive_until(b"\n", MAX_TASK_BYTES)
            task = Task.model_validate_json(line)
            async with limit:
                said = await _played(task, home)
            await stream.send(json.dumps({"code": 1 if said else 0, "said": said}).encode() + b"\n")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port: int = listener.extra(SocketAttribute.local_port)
        yield f"{sys.executable} -I {RELAY} {port}"
        tasks.cancel_scope.cancel()


async def _played(task: Task, homes: Path) -> str:
    """What went wrong; empty when nothing did."""
    try:
        with TemporaryDirectory(dir=homes) as home, anyio.fail_after(WAIT_S):
            return await play(task, Path(home))
    # The suite is to see every end of its client as what it is.
    except Exception:
        logger.exception("scenario %s", task.scenario)
        return traceback.format_exc()


async def play(task: Task, home: Path) -> str:
    """Call the server's tools by a plan, log in when that wants it, and call them again; gives what went wrong."""
    _configure(task, home)
    settings = load_settings(home=home, environment={"SECRET": task.context.client_secret})
    said = await _run(task, settings)
    for _ in range(LOGINS):
        if f" login {SERVER}`" not in said:
            break
        said = await _log_in(settings) or await _run(task, settings)
    return said


def _configure(task: Task, home: Path) -> None:
    servers: JsonValue = {"mcpServers": {SERVER: {"type": "http", "url": task.url}}}
    (home / "planwarden.json").write_text(json.dumps(servers), encoding="utf-8")
    login = f"[servers.{SERVER}.login]\nclient_metadata_url = {json.dumps(METADATA_URL)}\n"
    if task.context.client_id is not None:
        login += f'client_id = {json.dumps(task.context.client_id)}\nclient_secret_env = "SECRET"\n'
    (home / "planwarden.toml").write_text(login, encoding="utf-8")


async def _log_in(settings: Settings) -> str:
    """What `planwarden login` does, with a browser whose person agrees at once; gives what went wrong."""
    downstream = build_downstream(settings, build_registry(settings))
    config, file = found(downstream, SERVER)
    async with httpx2.AsyncClient(follow_redirects=True) as browser, anyio.create_task_group() as tasks:

        async def visit(url: str) -> None:
            tasks.start_soon(browser.get, url)

        try:
            await logged_in(config, file, visit)
        except ToolError as error:
            return error.message
    return ""


async def _run(task: Task, settings: Settings) -> str:
    """What went wrong with a plan that calls the server's tools."""
    async with planwarden.Warden(settings=settings, store=MemoryStore()) as warden:
        steps = await _steps(warden, task)
        [health] = warden.downstream.health()
        if health.health == "down":
            return f"the server is down: {health.reason}"
        if not steps:
            return ""
        execution = await warden.execute_plan(plan(*steps), wait_seconds=WAIT_S)
        while execution.status == "suspended":
            execution = await _answered(warden, execution)
        return "; ".join(step.error.message for step in execution.steps if step.error is not None)


async def _steps(warden: planwarden.Warden, task: Task) -> list[dict[str, JsonValue]]:
    """One for each call that the scenario asks for, else for each tool of the server."""
    page = await warden.search_tools(None, limit=100)
    names = [tool.name for tool in page.tools if tool.source == SERVER]
    if not names:
        return []
    found = await warden.get_tool_schemas(names)
    schemas = {tool.name: tool.input_schema for tool in found.tools}
    # null does not fit the schemas of those tools, so that no plan could pass it; leaving it out means the same.
    calls = {f"{SERVER}_{call.name}": _without_null(call.arguments) for call in task.context.toolCalls}
    if ECHO in schemas:
        echoed: dict[str, JsonValue] = {"schema": schemas[FOCAL]}
        calls = {ECHO: echoed}
    calls = calls or {name: _arguments(schema) for name, schema in schemas.items()}
    return [
        tool_step(f"step_{at}", name, arguments, dependencies=[]) for at, (name, arguments) in enumerate(calls.items())
    ]


def _without_null(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in arguments.items() if value is not None}


def _arguments(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Something for every required property."""
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return {}
    kinds = {str(name): properties[str(name)] for name in required}
    return {
        name: 2 if isinstance(kind, dict) and kind.get("type") == "number" else "two" for name, kind in kinds.items()
    }


async def _answered(warden: planwarden.Warden, execution: planwarden.Execution) -> planwarden.Execution:
    """After the first open question: yes, with what its form says by itself."""
    question = execution.suspensions[0]
    content: JsonValue = None
    if question.answer_schema is not None:
        enter = io.StringIO("\n" * 100)
        content = fill_in(Terminal(io.StringIO(), enter), question.answer_schema)
    decision = planwarden.Decision(approved=True, content=content)
    return await warden.resume_execution(execution.thread_id, question.suspension_id, decision, wait_seconds=WAIT_S)
