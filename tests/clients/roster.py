"""The clients, in the order of the matrix: their pinned packages, and how each lists the tools and makes calls."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.clients import hosts
from tests.clients.installed import Package, path_with_node, python_command
from tests.clients.stage import Call, Stage

Runs = Callable[[Stage, Sequence[Call]], None]
"""One process of the client: it starts the server, lists the tools and makes the calls in order."""


@dataclass(frozen=True)
class Client:
    name: str
    version: str
    runs: Runs
    answers_forms: bool
    """The client shows the question in a form, which the test answers; otherwise a person decides at a terminal."""
    speaks: str
    """The protocol version that it must use with our server."""


def _program(command: Callable[[], list[str]], *words: str) -> Runs:
    def runs(stage: Stage, calls: Sequence[Call]) -> None:
        stage.run([*command(), str(stage.launcher), json.dumps(calls), *words])

    return runs


OLD, NEW = "2025-11-25", "2026-07-28"
SDK1 = Package("@modelcontextprotocol/sdk", "1.32.2")
INSPECTOR = Package("@modelcontextprotocol/inspector", "2.12.0")
CLIENT2 = Package("@modelcontextprotocol/client", "2.4.0")


def _node(package: Package, program: str, *words: str) -> Runs:
    return _program(lambda: package.script(program), *words)


def _python(name: str, package: str, version: str, library: str, answers_forms: bool, speaks: str) -> Client:
    runs = _program(lambda: [*python_command(f"{package}=={version}", "client.py"), library])
    return Client(name, version, runs, answers_forms, speaks)


def _inspector(*era: str) -> Runs:
    """Returns a function that runs one process for the list and one for each call. `era` selects another protocol."""

    def runs(stage: Stage, calls: Sequence[Call]) -> None:
        command = [*INSPECTOR.binary("mcp-inspector"), "--cli", str(stage.launcher), *era, "--method"]
        env = {"HOME": str(stage.folder), "PATH": path_with_node()}
        stage.run([*command, "tools/list"], env=env)
        for tool, arguments in calls:
            words = ["tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments)]
            stage.run([*command, *words], env=env)

    return runs


CLIENTS: tuple[Client, ...] = (
    Client("TypeScript SDK 1.x", SDK1.version, _node(SDK1, "sdk1.mjs"), True, OLD),
    Client("TypeScript client 2.x", CLIENT2.version, _node(CLIENT2, "client2.mjs", "legacy"), True, OLD),
    Client("TypeScript client 2.x, on request", CLIENT2.version, _node(CLIENT2, "client2.mjs", "auto"), True, NEW),
    Client("MCP Inspector CLI", INSPECTOR.version, _inspector(), False, OLD),
    Client("MCP Inspector CLI, on request", INSPECTOR.version, _inspector("--protocol-era", "modern"), False, NEW),
    _python("fastmcp", "fastmcp", "4.1.2", "fastmcp", True, NEW),
    _python("pydantic-ai", "pydantic-ai-slim[mcp]", "2.68.0", "pydantic_ai", True, NEW),
    _python("langchain-mcp-adapters", "langchain-mcp-adapters", "0.3.2", "langchain", True, OLD),
    _python("openai-agents", "openai-agents", "0.24.0", "openai_agents", False, NEW),
    Client(
        "Claude Code",
        hosts.CLAUDE_CODE.version,
        hosts.build_runner(hosts.HostAnthropicWire(), hosts.claude_code),
        False,
        NEW,
    ),
    Client(
        "Codex CLI",
        hosts.CODEX.version,
        hosts.build_runner(hosts.HostResponsesWire(), hosts.codex),
        False,
        "2025-06-18",
    ),
    Client(
        "Gemini CLI",
        hosts.GEMINI_CLI.version,
        hosts.build_runner(hosts.HostGeminiWire(), hosts.gemini_cli),
        False,
        "2025-06-18",
    ),
    Client("opencode", hosts.OPENCODE.version, hosts.build_runner(hosts.HostChatWire(), hosts.opencode), False, OLD),
)
