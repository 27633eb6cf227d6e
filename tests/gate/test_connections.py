"""A host reaches a server in each way that the gate offers, in both eras, and a person decides about its calls."""

import json
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Literal

import anyio
import anyio.lowlevel
import httpx2
import pytest
from anyio.abc import TaskGroup
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.server.gate.address import AddressUpstream
from planwarden.server.gate.relay import Host, Relay
from planwarden.server.settings.configuration import load_settings
from planwarden.storage.hosts import Deliveries
from planwarden.tools.downstream.config import ServerConfig
from tests.gate.host import HANDSHAKE, NEWER, Home, read_text
from tests.gate.host import PEER as RAW_PEER
from tests.gate.test_calls import FIRST_LINE
from tests.support.doubles.hostile_http import http_double
from tests.support.forking import forked_command_line

RULE = '[[rules]]\ntool = "peer_ask"\nthen = "allow"\n'
MODES = ("legacy", "auto")
NOWHERE = "http://127.0.0.1:9/mcp"
OLD_SERVER = """
import json
while line := input():
    asked = json.loads(line)
    match asked["method"]:
        case "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}}
            answer = {"result": {"protocolVersion": "2025-06-18", **about}}
        case "tools/list":
            answer = {"result": {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]}}
        case _:
            answer = {"error": {"code": -32601, "message": "Method not found"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@asynccontextmanager
async def running(command: Sequence[str], port: int) -> AsyncGenerator[None]:
    """Run a server until the block ends; it listens when the block begins."""
    async with await anyio.open_process(command, stdin=DEVNULL, stdout=DEVNULL) as process:
        try:
            while True:
                try:
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await anyio.sleep(0.1)
            yield
        finally:
            process.terminate()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    path = home.folder / "planwarden.toml"
    path.write_text(path.read_text() + RULE)
    return home


def run_peer(home: Home, *words: str) -> Sequence[str]:
    return forked_command_line("-m", "tests.gate.sdk_peer", str(home.peer), *words)


def write_servers(home: Home, **servers: Any) -> None:
    command, *words = run_peer(home)
    document = {"mcpServers": {"peer": {"command": command, "args": words}, **servers}}
    (home.folder / "planwarden.json").write_text(json.dumps(document))


def run_gate(home: Home, *words: str) -> Any:
    command, *given = forked_command_line("gate", "--home", str(home.folder), *words)
    return stdio_client(StdioServerParameters(command=command, args=given))


async def accept(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"x": 1})


async def call(client: Client, name: str, arguments: dict[str, Any], **more: Any) -> str:
    return read_text((await client.call_tool(name, arguments, **more)).model_dump())


async def use(home: Home, find_transport: Callable[[], Any], prefix: str = "") -> None:
    """Do everything once in each era."""
    for mode in MODES:
        heard: list[Any] = []

        async def hear(*progress: Any, heard: list[Any] = heard) -> None:
            heard.append(progress)

        async with Client(find_transport(), mode=mode, elicitation_callback=accept) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names[:3] == [f"{prefix}look", f"{prefix}write", f"{prefix}ask"]
            assert (client.instructions or "").startswith("Its own words.")
            assert await call(client, f"{prefix}look", {"q": 7}, progress_callback=hear) == "saw 7"
            assert (1.0, 2.0, "half") in heard
            answer = await call(client, f"{prefix}ask", {})
            assert ("action='accept'" in answer) == (mode == "legacy")
            assert "note 1" in str(await client.read_resource("note://1"))
            assert "hello" in str(await client.get_prompt("greet"))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(home.decide)
                assert (await call(client, f"{prefix}write", {"text": mode})).startswith(f"wrote {mode}!")
    assert home.ledger == list(MODES)


async def test_server_behind_an_address(home: Home) -> None:
    port = find_port()
    words, peer = ("--name", "peer", "--upstream", f"http://127.0.0.1:{port}/mcp"), run_peer(home, str(port))
    with anyio.fail_after(120):
        async with Client(run_gate(home, *words), mode="legacy") as client:
            with pytest.raises(MCPError, match="server 'peer' cannot be reached"):
                await client.list_tools()
            async with running(peer, port):
                assert len((await client.list_tools()).tools) == 3
        async with running(peer, port):
            await use(home, lambda: run_gate(home, *words))


@pytest.mark.parametrize("name", ["not_json", "ends_early", "bad_packing"])
async def test_a_request_without_an_answer_names_the_server_and_says_of_no_effect_that_it_was_refused(
    home: Home, name: str
) -> None:
    path = home.folder / "planwarden.toml"
    rules = "".join(f'[tools."{server}_{name}"]\nrisk = "read"\neffect = "{server}"\n' for server in ("read", "effect"))
    path.write_text(path.read_text() + rules)
    with anyio.fail_after(120):
        async with http_double() as double:
            gates = [partial(run_gate, home, "--name", name, "--upstream", double.url) for name in ("read", "effect")]
            async with Client(gates[0](), mode="legacy") as client:
                with pytest.raises(MCPError, match="server 'read' did not return a result"):
                    await client.call_tool(name, {})
            async with Client(gates[1](), mode="legacy") as client, anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, name)
                # Only a question about what became of a call takes this answer.
                [end] = await home.decide(decision=Decision(approved=True, content={"happened": True}))
                assert end.status == "completed" and double.calls == [name] * 2
            double.handshake = name
            async with Client(gates[0](), mode="legacy") as client:
                with pytest.raises(MCPError, match="server 'read' cannot be used: it did not return a result"):
                    await client.list_tools()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("refused", "it answered with HTTP status 400"),
        ("missing", "it answered with HTTP status 404"),
        ("elsewhere", "Redirect to http://127.0.0.1:9/mcp not followed"),
    ],
)
async def test_refusal_or_redirect_of_a_handshake_says_that_the_server_cannot_be_reached_and_why(
    home: Home, name: str, why: str
) -> None:
    with anyio.fail_after(60):
        async with http_double() as double:
            double.handshake = name
            async with Client(run_gate(home, "--name", "far", "--upstream", double.url), mode="legacy") as client:
                with pytest.raises(MCPError, match=f"server 'far' cannot be reached: {why}"):
                    await client.list_tools()


async def test_all_servers_of_the_home_behind_one_connection(home: Home) -> None:
    write_servers(home, gone={"command": "false"})
    with anyio.fail_after(120):
        await use(home, lambda: run_gate(home), "peer_")
        async with Client(run_gate(home), mode="legacy") as client:
            with pytest.raises(MCPError, match="server 'gone' cannot be used: it "):
                await client.call_tool("gone_tool", {})


@pytest.mark.parametrize("mode", MODES)
async def test_servers_of_both_eras_behind_one_connection(home: Home, mode: Literal["legacy", "auto"]) -> None:
    write_servers(home, old={"command": sys.executable, "args": ["-c", OLD_SERVER]})
    with anyio.fail_after(60):
        async with Client(run_gate(home), mode=mode) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["peer_look", "peer_write", "peer_ask", "old_do"]
            assert await call(client, "peer_look", {"q": 7}) == "saw 7"


async def test_each_server_of_the_home_over_http(home: Home) -> None:
    raw = {"command": sys.executable, "args": [str(RAW_PEER), str(home.peer)]}
    write_servers(home, raw=raw)
    port = find_port()
    url = f"http://127.0.0.1:{port}/gate"
    serve = forked_command_line("serve", "--http", "--port", str(port), "--home", str(home.folder))
    with anyio.fail_after(120):
        async with running(serve, port):
            await use(home, lambda: f"{url}/peer")
            async with httpx2.AsyncClient() as http:
                assert (await http.post(f"{url}/other", json={})).status_code == 404
                await hide_a_call(http, f"{url}/peer")
                assert home.ledger == list(MODES)
            async with Client(f"{url}/raw", mode="legacy") as client:
                with pytest.raises(MCPError, match="something that is not a result"):
                    await client.read_resource("note://bad")
                assert "the note" in str(await client.read_resource("note://1"))
            tokens = [await make_token(home, owner) for owner in ("ann", "bob")]
            for status, token in ((401, "pwt_other"), (406, tokens[0])):
                headers = {"authorization": f"Bearer {token}"}
                await see_status(f"{url}/peer", headers, status)
            # The same call of two owners is two questions, which nobody else sees.
            places: set[str] = set()
            async with (
                open_as(tokens[0], url) as ann,
                open_as(tokens[1], url) as bob,
                anyio.create_task_group() as tasks,
            ):
                both = anyio.Event()

                async def hear(progress: float, total: float | None, message: str | None) -> None:
                    places.add(str(message))
                    if len([place for place in places if "waiting for a person" in place]) == 2:
                        both.set()

                for client in (ann, bob):
                    tasks.start_soon(partial(call, client, "write", {"text": "shared"}, progress_callback=hear))
                await both.wait()
                tasks.cancel_scope.cancel()
            async with planwarden.Warden(settings=load_settings(home=home.folder, environment={})) as warden:
                assert not (await warden.list_suspensions()).suspensions


async def test_result_for_a_client_over_http_that_has_gone_is_kept(home: Home) -> None:
    write_servers(home)
    port = find_port()
    serve = forked_command_line("serve", "--http", "--port", str(port), "--home", str(home.folder))
    url = f"http://127.0.0.1:{port}/gate/peer"
    with anyio.fail_after(120):
        async with running(serve, port):
            async with open_session(url) as http:
                params = {"name": "write", "arguments": {"text": "a"}, "_meta": {"progressToken": 1}}
                request = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
                async with http.stream("POST", url, json=request) as answer:
                    async for line in answer.aiter_lines():
                        if "waiting for a person" in line:
                            break
                [end] = await home.decide()
                began = time.time()
                async with Client(url, mode="legacy") as client:
                    assert FIRST_LINE in await call(client, "write", {"text": "a"})
            async with home.open() as warden:
                delivery = await Deliveries(warden.service.store).find(end.execution_id)
            assert delivery is not None and delivery.delivered_at > began
    assert home.ledger == ["a"]


@asynccontextmanager
async def open_session(url: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client in a session of the older revision."""
    headers = {"accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HANDSHAKE}
        answer = await http.post(url, json=request)
        http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield http


async def hide_a_call(http: httpx2.AsyncClient, url: str) -> None:
    """Send a request with a call on a line of its own inside, which is not a message for the server."""
    meta: dict[str, Any] = {f"{NEWER}protocolVersion": "2026-07-28", f"{NEWER}clientCapabilities": {}}
    hidden = {"name": "write", "arguments": {"text": "hidden"}, "_meta": meta}
    line = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": hidden})
    outer = {"jsonrpc": "2.0", "id": 1, "method": "prompts/list", "params": {"_meta": meta, "more": 0}}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "prompts/list", "content-type": "application/json"}
    accept = {"accept": "application/json, text/event-stream"}
    for end in ("\n", "\r"):
        body = json.dumps(outer).replace('"more": 0', f'"more": [{end}{line}{end}]')
        answer = await http.post(url, content=body, headers={**headers, **accept})
        assert answer.status_code == 200, answer.text


async def make_token(home: Home, owner: str) -> str:
    made = await anyio.run_process(forked_command_line("token", "add", owner, "--home", str(home.folder)))
    return next(word for word in made.stdout.decode().split() if word.startswith("pwt_"))


async def see_status(url: str, headers: dict[str, str], status: int) -> None:
    """Wait until requests are answered so: a server may not know of the first token at once."""
    async with httpx2.AsyncClient(headers=headers) as http:
        while (await http.post(url, json={}, headers={"accept": "text/plain"})).status_code != status:  # noqa: ASYNC110
            # Another process made it.
            await anyio.sleep(0.2)


@asynccontextmanager
async def open_as(token: str, url: str) -> AsyncGenerator[Client]:
    """Yield a client with the token."""
    http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60)
    async with http, Client(streamable_http_client(f"{url}/peer", http_client=http)) as client:
        yield client


@pytest.mark.parametrize("switches", range(3))
async def test_connection_that_is_cancelled_in_the_moment_when_it_opens_does_not_count_as_open(
    tasks: TaskGroup, switches: int
) -> None:
    async def ignore(_: bytes) -> None:
        """Write nothing: the host gets no message."""

    upstream, opening = AddressUpstream(ServerConfig(name="far", url=NOWHERE, is_gated=True)), anyio.CancelScope()
    Relay(upstream.config, upstream, Host(ignore, tasks))

    async def cancel_soon() -> None:
        for _ in range(switches):
            await anyio.lowlevel.checkpoint()
        opening.cancel()

    tasks.start_soon(cancel_soon)
    with opening:
        await upstream.start(tasks)
    assert upstream.is_running != opening.cancelled_caught
