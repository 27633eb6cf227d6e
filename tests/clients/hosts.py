"""Hosts without a person. The model of each is a double on this machine, which makes the calls that the test wants.

Hosts also stream calls, and send more kinds of items than planwarden. Ids of calls contain the number of the request,
because hosts drop a second result with the same id. A model without a memory finds its place in the script by counting
the results in a request.

Sources of the settings: the pages that `server/cli/hosts.py` lists, and for the providers
https://code.claude.com/docs/en/llm-gateway, https://developers.openai.com/codex/config-reference,
https://geminicli.com/docs/reference/configuration and https://opencode.ai/docs/providers.
"""

import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from tests.clients.installed import Package, path_with_node
from tests.clients.stage import Call, Failed, Stage
from tests.support.doubles import wires
from tests.support.doubles.manners import Manner
from tests.support.doubles.messages import Body, ModelReply, ModelRequest
from tests.support.doubles.server import ProviderDouble
from tests.support.network import listen


class HostAnthropicWire(wires.AnthropicWire):
    """Claude Code. Its side questions use an alias of the model, and it counts tokens, which the double refuses."""

    results = '"type": "tool_result"'

    def read(self, http_request: wires.HttpRequest, number: int) -> ModelRequest:
        """Reads only what the double needs; the real service accepts more kinds of tools and messages."""
        body = http_request.body
        wires.expect(http_request.path.split("?")[0] == "/v1/messages", "no such path", 404)
        tools = {tool["name"]: tool.get("input_schema", {}) for tool in body.get("tools", ())}
        return _build_request(http_request, number, tools)

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        if not reply.calls:
            return super().stream(reply, request)
        whole = self.write(reply, request)
        blocks: list[Body] = []
        for index, block in enumerate(whole["content"]):
            block["id"] = f"{block['id']}_{request.number}"
            arguments = json.dumps(block["input"])
            blocks += [
                {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}},
                {
                    "type": "content_block_delta",
                    "index": index,
                    "delta": {"type": "input_json_delta", "partial_json": arguments},
                },
                {"type": "content_block_stop", "index": index},
            ]
        return wires.format_events(
            {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
            *blocks,
            {
                "type": "message_delta",
                "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
                "usage": whole["usage"],
            },
            {"type": "message_stop"},
        )


class HostChatWire(wires.OpenAIChatWire):
    """opencode."""

    results = '"role": "tool"'

    def read(self, http_request: wires.HttpRequest, number: int) -> ModelRequest:
        wires.expect(http_request.path == "/v1/chat/completions", "no such path", 404)
        functions = [tool["function"] for tool in http_request.body.get("tools", ())]
        return _build_request(
            http_request, number, {function["name"]: function["parameters"] for function in functions}
        )

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        if not reply.calls:
            return super().stream(reply, request)
        whole = self.write(reply, request)
        message = whole["choices"][0]["message"]
        calls = [
            {**call, "id": f"{call['id']}_{request.number}", "index": index}
            for index, call in enumerate(message["tool_calls"])
        ]
        common = {"id": whole["id"], "object": "chat.completion.chunk", "created": wires.CREATED, "model": wires.MODEL}
        deltas: list[tuple[Body, str | None]] = [({"role": "assistant", "tool_calls": calls}, None), ({}, "tool_calls")]
        chunks = [{**common, "choices": [{"index": 0, "delta": d, "finish_reason": r}]} for d, r in deltas]
        chunks.append({**common, "choices": [], "usage": whole["usage"]})
        return [*wires.format_events(*chunks), "data: [DONE]\n\n"]


class HostResponsesWire(wires.OpenAIResponsesWire):
    """Codex CLI."""

    results = '"type": "function_call_output"'

    def read(self, http_request: wires.HttpRequest, number: int) -> ModelRequest:
        wires.expect(http_request.path == "/v1/responses", "no such path", 404)
        return _build_request(http_request, number, dict(_find_functions(http_request.body.get("tools", []))))

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        if not reply.calls:
            return super().stream(reply, request)
        whole = self.write(reply, request)
        for item in whole["output"]:
            _fill_ids(item, request)
        items = [
            {"type": "response.output_item.done", "output_index": i, "item": x} for i, x in enumerate(whole["output"])
        ]
        bodies: list[Body] = [
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
            *items,
            {"type": "response.completed", "response": whole},
        ]
        return wires.format_events(*({**body, "sequence_number": number} for number, body in enumerate(bodies)))


class HostGeminiWire(wires.GeminiWire):
    """Gemini CLI."""

    results = '"functionResponse"'

    def read(self, http_request: wires.HttpRequest, number: int) -> ModelRequest:
        wires.expect(":" in http_request.path and "enerateContent" in http_request.path, "no such path", 404)
        declared = [
            found for tool in http_request.body.get("tools", ()) for found in tool.get("functionDeclarations", ())
        ]
        return _build_request(http_request, number, {str(found["name"]): {} for found in declared})

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        return wires.format_events(self.write(reply, request)) if reply.calls else super().stream(reply, request)


HostWire = HostAnthropicWire | HostChatWire | HostResponsesWire | HostGeminiWire


def count_results(wire: HostWire, request: ModelRequest) -> int:
    return json.dumps(request.body).count(wire.results)


def _build_request(http_request: wires.HttpRequest, number: int, tools: dict[str, Body]) -> ModelRequest:
    made = ModelRequest(number=number, system="", text="", tools=tools)
    return replace(made, body=http_request.body, headers=http_request.headers, path=http_request.path)


def _find_functions(tools: list[Body], namespace: str = "") -> Iterator[tuple[str, Body]]:
    for tool in tools:
        if tool["type"] == "namespace":
            yield from _find_functions(tool["tools"], f"{tool['name']}/")
        elif tool["type"] == "function":
            yield namespace + tool["name"], tool.get("parameters", {})


def _fill_ids(item: dict[str, Any], request: ModelRequest) -> None:
    """Writes a call's namespace into its own field, and the number of the request into its id."""
    namespace, slash, name = str(item.get("name", "")).partition("/")
    if slash:
        item |= {"namespace": namespace, "name": name}
    if "call_id" in item:
        item["call_id"] = f"{item['call_id']}_{request.number}"


PROMPT = "Do what the plan needs."


@dataclass(frozen=True)
class Session:
    command: list[str]
    env: dict[str, str]


PrepareSession = Callable[[Stage, Path, str], Session]
"""Prepares a session from the stage, the host's own folder and the address of its provider."""

Answer = Callable[[ModelRequest], ModelReply]


def build_runner(wire: HostWire, prepare: PrepareSession) -> Callable[[Stage, Sequence[Call]], None]:
    """Returns a function that runs the host; its model makes the calls one after the other."""

    def runs(stage: Stage, calls: Sequence[Call]) -> None:
        anyio.run(_run, wire, prepare, stage, calls)

    return runs


async def _run(wire: HostWire, prepare: PrepareSession, stage: Stage, calls: Sequence[Call]) -> None:
    double, output = await run_session(wire, prepare, stage, lambda request: _answer(wire, request, calls))
    _check_results_arrived(wire, double, calls, output)


async def run_session(
    wire: HostWire, prepare: PrepareSession, stage: Stage, answer: Answer
) -> tuple[ProviderDouble, str]:
    """Runs the host once; its model replies with `answer`. Returns what the model was asked, and the host's output."""
    async with serve_provider(wire, answer) as double:
        folder = stage.folder / "host"
        folder.mkdir(exist_ok=True)
        session = prepare(stage, folder, double.url)
        env = {"HOME": str(folder), "PATH": path_with_node(), **session.env}
        output = await anyio.to_thread.run_sync(lambda: stage.run(session.command, cwd=folder, env=env))
    return double, output


@asynccontextmanager
async def serve_provider(wire: HostWire, answer: Answer) -> AsyncGenerator[ProviderDouble]:
    """Serves a provider on a loopback port whose model replies with `answer` and which accepts any key."""
    double = ProviderDouble(wire, Manner("driven", "makes the calls of the test", answer))
    double.expected_key = None
    async with listen(double.answer) as double.port:
        yield double


def _check_results_arrived(wire: HostWire, double: ProviderDouble, calls: Sequence[Call], output: str) -> None:
    """Raises `Failed` when the model never got the result of its last call."""
    if any(count_results(wire, request) >= len(calls) for request in double.requests):
        return
    offered: list[str] = max((list(request.tools) for request in double.requests), key=len, default=list[str]())
    raise Failed(
        f"the model was asked {len(double.requests)} times, offered {offered}; the host said: {output[-1500:]}"
    )


def _answer(wire: HostWire, request: ModelRequest, calls: Sequence[Call]) -> ModelReply:
    """Returns the next call. Returns a text when all calls are made, and for side questions without our tools."""
    done_count = count_results(wire, request)
    if done_count >= len(calls):
        return ModelReply(text="Done.")
    return build_call_reply(request, calls[done_count]) or ModelReply(text="Our tools are not here.")


def build_call_reply(request: ModelRequest, call: Call) -> ModelReply | None:
    """Returns the call with the name under which the host offers our tool; None when the host does not offer it."""
    tool, arguments = call
    named = [name for name in request.tools if name == tool or name.endswith(("_" + tool, "/" + tool))]
    # A host may have a tool of its own with this name.
    return ModelReply(calls=((max(named, key=len), arguments),)) if named else None


CLAUDE_CODE = Package("@anthropic-ai/claude-code", "2.1.330")
CODEX = Package("@openai/codex", "0.169.0")
GEMINI_CLI = Package("@google/gemini-cli", "0.61.0")
OPENCODE = Package("opencode-ai", "1.18.33")


def claude_code(stage: Stage, folder: Path, url: str, *typed: str) -> Session:
    """Returns a session of what is `typed`, and so do the other three; `PROMPT` if that is nothing."""
    words = ["--print", *(typed or (PROMPT,)), "--model", wires.MODEL]
    return Session([*claude_code_command(stage, folder), *words], claude_code_env(url))


def claude_code_command(stage: Stage, folder: Path) -> list[str]:
    """Returns the command with our server alone, and without a question before its tools are called."""
    config = folder / "mcp.json"
    config.write_text(stage.config("claude-code"), encoding="utf-8")
    words = ["--mcp-config", str(config), "--strict-mcp-config", "--allowedTools=mcp__planwarden"]
    return [*CLAUDE_CODE.binary("claude"), *words]


def claude_code_env(url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": wires.KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "ENABLE_TOOL_SEARCH": "false",
    }


def codex(stage: Stage, folder: Path, url: str, *typed: str) -> Session:
    home = codex_home(stage, folder, url, "never")
    words = ["exec", "--skip-git-repo-check", "--sandbox", "read-only", *(typed or (PROMPT,))]
    return Session([*CODEX.binary("codex"), *words], {"CODEX_HOME": str(home), "DOUBLE_KEY": wires.KEY})


def codex_home(stage: Stage, folder: Path, url: str, approval: str, more: str = "") -> Path:
    """Writes a configuration with our server and our provider, and returns its folder."""
    home = folder / ".codex"
    home.mkdir(exist_ok=True)
    server = "[mcp_servers.planwarden]\n"
    # Without it the host calls the model before the server has listed its tools.
    config = stage.config("codex").replace(server, f"{server}required = true\n")
    (home / "config.toml").write_text(f"{codex_provider(url, approval, more)}{config}\n", encoding="utf-8")
    return home


def codex_provider(url: str, approval: str, more: str = "") -> str:
    return (
        f'model = "{wires.MODEL}"\nmodel_provider = "double"\napproval_policy = "{approval}"\n{more}\n'
        f'[model_providers.double]\nname = "double"\nbase_url = "{url}"\nenv_key = "DOUBLE_KEY"\n'
        'wire_api = "responses"\n\n'
    )


def gemini_cli(stage: Stage, folder: Path, url: str, *typed: str) -> Session:
    write_gemini_settings(stage.config("gemini"), folder)
    return start_gemini(url, *typed)


def write_gemini_settings(config: str, folder: Path) -> None:
    settings = json.loads(config)
    settings["security"] = {"auth": {"selectedType": "gemini-api-key"}}
    settings["privacy"] = {"usageStatisticsEnabled": False}
    settings["general"] = {"disableAutoUpdate": True}
    (folder / ".gemini").mkdir(exist_ok=True)
    (folder / ".gemini" / "settings.json").write_text(json.dumps(settings), encoding="utf-8")


def start_gemini(url: str, *typed: str) -> Session:
    words = ["--model", wires.MODEL, "--yolo", "--skip-trust", "--prompt", *(typed or (PROMPT,))]
    env = {"GEMINI_API_KEY": wires.KEY, "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_CLI_NO_RELAUNCH": "true"}
    return Session([*GEMINI_CLI.binary("gemini"), *words], env)


def opencode(stage: Stage, folder: Path, url: str, *typed: str) -> Session:
    write_opencode_settings(stage.config("opencode"), folder)
    return start_opencode(url, *typed)


def write_opencode_settings(config: str, folder: Path) -> None:
    settings = json.loads(config) | {"autoupdate": False, "share": "disabled"}
    (folder / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")


def start_opencode(url: str, *typed: str) -> Session:
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "double",
        "options": {"baseURL": url, "apiKey": wires.KEY},
        "models": {wires.MODEL: {"name": wires.MODEL}},
    }
    env = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    env["OPENCODE_CONFIG_CONTENT"] = json.dumps({"provider": {"double": provider}})
    words = ["run", "--auto", "--model", f"double/{wires.MODEL}", *(typed or (PROMPT,))]
    return Session([*OPENCODE.binary("opencode"), *words], env)
