"""The product as a client of the suite's servers: a home that names the server, a plan that calls its tools, a person.

Every scenario gets its own home. The plan has one step for each tool of the server, and no step waits for another, so
one call runs while the question of another one is open. The person approves every call and accepts the defaults of the
terminal's form. Nothing here speaks MCP.
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
from planwarden.server.cli.commands.login import find_login, log_in_with_browser
from planwarden.server.cli.terminal.form import fill_in
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.catalogue import build_downstream, build_registry
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.settings.secrets import find_secrets
from planwarden.storage.sqlite.store import MemoryStore
from tests.support.wardens import plan, tool_step

logger = logging.getLogger(__name__)

RELAY = Path(__file__).with_name("relay.py")
SERVER = "peer"
WAIT_S = 25.0
AT_ONCE = 3
"""Scenarios at a time; more would disturb those that measure time."""
LOGINS = 2
"""Logins in one scenario: a call may need more rights than a listing."""
METADATA_URL = "https://conformance-test.local/client-metadata.json"
"""The suite expects this address and never reads it."""
MAX_TASK_BYTES = 1024 * 1024
ECHO, FOCAL = f"{SERVER}_json_schema_echo", f"{SERVER}_json_schema_2020_12_tool"


class ToolCall(BaseModel):
    """A call that a scenario expects."""

    name: str
    arguments: dict[str, JsonValue]


class Context(BaseModel):
    """The facts that a scenario gives to its client."""

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
async def run_relay(home: Path) -> AsyncGenerator[str]:
    """Yields the command that plays a scenario, while the block runs. It creates homes in `home`."""
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def serve(stream: SocketStream) -> None:
        async with stream:
            line = await BufferedByteReceiveStream(stream).receive_until(b"\n", MAX_TASK_BYTES)
            task = Task.model_validate_json(line)
            async with limit:
                problem = await _play_and_report(task, home)
            await stream.send(json.dumps({"code": 1 if problem else 0, "said": problem}).encode() + b"\n")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port: int = listener.extra(SocketAttribute.local_port)
        yield f"{sys.executable} -I {RELAY} {port}"
        tasks.cancel_scope.cancel()


async def _play_and_report(task: Task, homes: Path) -> str:
    try:
        with TemporaryDirectory(dir=homes) as home, anyio.fail_after(WAIT_S):
            return await play(task, Path(home))
    # The suite must see every failure of its client.
    except Exception:
        logger.exception("scenario %s", task.scenario)
        return traceback.format_exc()


async def play(task: Task, home: Path) -> str:
    """Calls the server's tools by a plan, logs in if necessary and calls them again. Returns the problem, if any."""
    _configure(task, home)
    settings = load_settings(home=home, environment={"SECRET": task.context.client_secret})
    problem = await _run(task, settings)
    for _ in range(LOGINS):
        if f" login {SERVER}`" not in problem:
            break
        problem = await _log_in(settings) or await _run(task, settings)
    return problem


def _configure(task: Task, home: Path) -> None:
    servers: JsonValue = {"mcpServers": {SERVER: {"type": "http", "url": task.url}}}
    (home / "planwarden.json").write_text(json.dumps(servers), encoding="utf-8")
    login = f"[servers.{SERVER}.login]\nclient_metadata_url = {json.dumps(METADATA_URL)}\n"
    if task.context.client_id is not None:
        login += f'client_id = {json.dumps(task.context.client_id)}\nclient_secret_env = "SECRET"\n'
    (home / "planwarden.toml").write_text(login, encoding="utf-8")


async def _log_in(settings: Settings) -> str:
    """Does what `planwarden login` does, with a browser that agrees at once. Returns the problem, if any."""
    downstream = build_downstream(settings, build_registry(settings))
    downstream.secrets = find_secrets(settings, None)
    login = find_login(downstream, SERVER)
    async with httpx2.AsyncClient(follow_redirects=True) as browser, anyio.create_task_group() as tasks:

        async def visit(url: str) -> None:
            tasks.start_soon(browser.get, url)

        try:
            await log_in_with_browser(login, visit)
        except ToolError as error:
            return error.message
    return ""


async def _run(task: Task, settings: Settings) -> str:
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
    page = await warden.search_tools(None, limit=100)
    names = [tool.name for tool in page.tools if tool.source == SERVER]
    if not names:
        return []
    found = await warden.get_tool_schemas(names)
    schemas = {tool.name: tool.input_schema for tool in found.tools}
    # null does not fit the schemas of those tools, so that no plan could pass it; leaving it out means the same.
    calls: dict[str, JsonValue] = {
        f"{SERVER}_{call.name}": {name: value for name, value in call.arguments.items() if value is not None}
        for call in task.context.toolCalls
    }
    if ECHO in schemas:
        echoed: dict[str, JsonValue] = {"schema": schemas[FOCAL]}
        calls = {ECHO: echoed}
    calls = calls or {name: _arguments(schema) for name, schema in schemas.items()}
    return [
        tool_step(f"step_{at}", name, arguments, dependencies=[]) for at, (name, arguments) in enumerate(calls.items())
    ]


def _arguments(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
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
