"""MCP over pipes and HTTP, with real servers: only the protocol, bounded frames, a log without secrets, a clean end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from planwarden.server.mcp.frames import MAX_FRAME_BYTES
from planwarden.server.transports.http import MAX_BODY_BYTES
from planwarden.tools.downstream.value_counter import MAX_VALUES
from tests.harness.clients import HttpHost
from tests.harness.ledger import Ledger
from tests.harness.process import STAGE, poll
from tests.harness.records import Records, read_file
from tests.harness.stage import SHOP
from tests.kit import Client, Settings, confirm, first_only, ok, plan, requirement, tool_step
from tests.server.mcp.http_support import HEADERS, bearing, serving, token_for
from tests.support.forking import forked_command_line
from tests.support.paths import ROOT

COMMAND = [sys.executable, "-m", "planwarden.server.main"]

TOOLS = '''
"""A tool that prints."""

import os

import planwarden


@planwarden.tool(risk="read", effect="effect")
def note(text: str) -> str:
    """Write a line."""
    print("this must not reach the wire")
    os.write(1, b"nor must this\\n")
    return text
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "planwarden.toml").write_text('[tools]\npython = ["tools.py"]\n')
    return tmp_path


def _spawn(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _initialize(process: "subprocess.Popen[bytes]") -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    _send(process, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    _send(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})


def _send(process: "subprocess.Popen[bytes]", message: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def _read(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def _note(process: "subprocess.Popen[bytes]") -> None:
    call = {"name": "execute_plan", "arguments": {"plan": plan(tool_step("a", "note", {"text": "x"}))}}
    _send(process, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
    assert _read(process)["result"]["structuredContent"]["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("ending", first_only("SIGTERM", "SIGINT", "end of input"))
def test_nothing_but_protocol_is_on_stdout_and_the_process_ends_cleanly(home: Path, ending: str) -> None:
    with _spawn([*COMMAND, "--home", str(home)]) as process:
        _initialize(process)
        assert _read(process)["result"]["serverInfo"]["name"] == "planwarden"
        _note(process)
        _send(process, {"jsonrpc": "2.0", "id": 3, "method": "no/such"})
        assert _read(process)["error"]["code"] == -32601
        if ending == "end of input":
            out, err = process.communicate(timeout=60)
            expected = 0
        else:
            number = getattr(signal, ending)
            process.send_signal(number)
            process.wait(60)
            assert process.stdout is not None and process.stderr is not None
            out, err, expected = process.stdout.read(), process.stderr.read(), 128 + number
        assert (process.returncode, out) == (expected, b"")
        assert b"Traceback" not in err and b"nor must this" in err
    assert list((home / "owners").glob("*")) == []


EMPTY = b"[" + b"[]," * (MAX_VALUES // 2) + b"[]]"


@pytest.mark.slow
@requirement("server:frames")
def test_a_request_that_is_too_large_is_refused_under_its_id_and_the_connection_lives_on(home: Path) -> None:
    with _spawn(forked_command_line("--home", str(home))) as process:
        _initialize(process)
        assert _read(process)["id"] == 1
        assert process.stdin is not None
        long = b'"' + b"x" * (MAX_FRAME_BYTES + 10_000) + b'"'
        for params, why in ((EMPTY, "too many values"), (long, f"larger than {MAX_FRAME_BYTES} bytes")):
            process.stdin.write(b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"x":' + params + b"}}\n")
            process.stdin.write(b'{"method":"tools/call","params":{"x":' + params + b'},"jsonrpc":"2.0","id":"a3"}\n')
            # An answer, and a notification: there is nobody to tell.
            process.stdin.write(b'{"jsonrpc":"2.0","id":7,"result":{"x":' + params + b"}}\n")
            process.stdin.write(b'{"jsonrpc":"2.0","method":"n","params":{"id":9,"x":' + params + b"}}\n")
            process.stdin.flush()
            for request_id in (2, "a3"):
                answer = _read(process)
                assert (answer["id"], answer["error"]["code"]) == (request_id, -32600)
                assert why in answer["error"]["message"]
        _send(process, {"jsonrpc": "2.0", "id": 4, "method": "ping"})
        assert _read(process) == {"jsonrpc": "2.0", "id": 4, "result": {}}
        process.communicate(timeout=60)
        assert process.returncode == 0


NOISE = """
import atexit
import ctypes
import os
import subprocess
import sys

print("printed", flush=True)
sys.stdout.write("written")
sys.__stdout__.write("written to the first stream")
os.write(1, b"by descriptor")
ctypes.CDLL(None).puts(b"by a library in C")
subprocess.run([sys.executable, "-c", "print('by a program')"])
atexit.register(print, "at the end")
"""


@pytest.mark.slow
@requirement("stdio:only-protocol")
def test_a_tools_file_that_prints_while_it_is_loaded_gets_into_neither_the_protocol_nor_a_document(home: Path) -> None:
    (home / "tools.py").write_text(TOOLS + NOISE)
    with _spawn([*COMMAND, "--home", str(home)]) as process:
        _initialize(process)
        assert _read(process)["id"] == 1
        _note(process)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"")
    for noise in (b"printed", b"written to", b"by descriptor", b"library in C", b"by a program", b"at the end"):
        assert noise in err
    command = forked_command_line("call", "nosuch", "--json", "--home", str(home))
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert done.returncode == 2 and b"by descriptor" in done.stderr
    assert json.loads(done.stdout)


@pytest.mark.slow
@requirement("start:failure")
@pytest.mark.parametrize(
    ("file", "text", "said"),
    first_only(
        ("tools.py", "raise RuntimeError('no such machine')\n", ("tools.py", "no such machine")),
        ("planwarden.toml", '[tools]\npython = ["gone.py"]\n', ("gone.py",)),
        ("planwarden.toml", 'model = "scripted:gone.json"\n', ("gone.json",)),
        ("planwarden.json", "not JSON", ("planwarden.json",)),
    ),
)
def test_a_setting_that_cannot_be_used_ends_the_process_with_a_sentence(
    home: Path, file: str, text: str, said: tuple[str, ...]
) -> None:
    (home / file).write_text(text)
    command = forked_command_line("--home", str(home))
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert all(word.encode() in done.stderr for word in said) and b"Traceback" not in done.stderr


CALCULATED = tool_step("a", "calculator", {"expression": "6*7"})


async def test_a_connection_that_ends_in_the_middle_of_a_request_logs_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Settings(home=tmp_path)) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        sent = {**HEADERS, "Host": f"127.0.0.1:{port}", "Content-Length": "500"}
        for path in ("/mcp", "/inbox/pair"):
            lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", "half"]
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send("\r\n".join(lines).encode())
        async with Client(url) as client:
            assert (await ok(client, "execute_plan", plan=plan(CALCULATED)))["status"] == "completed"
    assert [record for record in caplog.records if record.exc_info] == []


GATE = """
import anyio
import planwarden

STARTED, OPENED = anyio.Event(), anyio.Event()


@planwarden.tool(risk="read", effect="read")
async def gate() -> str:
    \"\"\"Waits.\"\"\"
    STARTED.set()
    await OPENED.wait()
    return "through"
"""


async def test_a_client_that_hangs_up_stops_nothing(tmp_path: Path) -> None:
    file = tmp_path / "hanging_up.py"
    file.write_text(GATE)
    async with serving(Settings(home=tmp_path, python_files=(file,))) as url:
        gate = sys.modules["planwarden_tools_hanging_up"]
        with anyio.fail_after(60):
            async with Client(url) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "execute_plan", {"plan": plan(tool_step("a", "gate"), confirm("b"))})
                await gate.STARTED.wait()
                tasks.cancel_scope.cancel()
            gate.OPENED.set()
            async with Client(url) as client:
                while not (page := await ok(client, "list_suspensions"))["total"]:
                    pass
                execution = await ok(client, "get_execution", threadId=page["suspensions"][0]["threadId"])
                assert execution["steps"][0]["result"] == "through"


@requirement("server:frames")
async def test_a_request_with_too_many_bytes_or_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    many = b"[" + b"[]," * (MAX_VALUES // 2) + b"[]]"
    body = b'{"method":"tools/call","params":{"id":1,"x":' + many + b'},"jsonrpc":"2.0","id":"a7"}'

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with serving(Settings(home=tmp_path)) as url, httpx2.AsyncClient() as http:
        assert (await http.post(url, content=b"x" * (MAX_BODY_BYTES + 1))).status_code == 413
        for content in (body, chunks(), body):
            response = await http.post(url, content=content, headers=HEADERS)
            assert response.status_code == 413
            answer = response.json()
            assert (answer["id"], answer["error"]["code"]) == ("a7", -32600)
            assert "too many values" in answer["error"]["message"]
        # An end that could be read in very many ways is not tried in all of them.
        endless = b'{"x":' + many + (b',"id":1' + b" " * 20) * 37 + b",x}"
        assert (await http.post(url, content=endless, headers=HEADERS)).json()["id"] is None
        async with Client(url) as client:
            assert (await ok(client, "execute_plan", plan=plan(CALCULATED)))["status"] == "completed"


MAIN = """
import sys
import planwarden.agent.runtime.engine as engine
from planwarden.server.main import main
# The call ends when this test lets it, however busy the machine is.
engine.GRACE_S = 3_600.0
sys.exit(main())
"""
SECRET = "whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="
CONFIGURATION = f"""
[tools]
python = ["{SHOP}"]

[hooks.orders]
plan = "order"
secret_env = "ORDERS"
"""
HOLD = {"id": "s0", "description": "hold", "toolCalls": [{"toolName": "hold", "arguments": {"to": "go"}}]}


def start(home: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", MAIN, "--home", str(home), "serve", "--http", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), STAGE: str(home.parent), "ORDERS": SECRET}
    with log.open("wb") as errors:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=errors)


@requirement("access:logged")
async def test_a_server_that_ends_records_its_calls_result_and_logs_refusals_without_secrets(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir(mode=0o700)
    (home / "planwarden.toml").write_text(CONFIGURATION, encoding="utf-8")
    token = bearing(await token_for(Settings(home=home), "ann"))
    server = start(home, log)
    with anyio.fail_after(60):
        try:
            await poll(lambda: " listens on " in log.read_text())
            url = log.read_text().partition(" listens on ")[2].partition(";")[0]
            async with httpx2.AsyncClient(timeout=60) as http:
                for address, headers in (
                    (url, bearing("pwt_guessed")),
                    (url.replace("/mcp", "/hooks/orders"), {"webhook-signature": "v1,guessed"}),
                    (url.replace("/mcp", "/hooks/guessed"), {}),
                ):
                    assert (await http.post(address, json={}, headers=headers)).status_code == 401
            async with httpx2.AsyncClient(timeout=60, headers=token) as http:
                arguments = {"plan": {"todoList": [HOLD]}, "options": {"waitSeconds": 0}}
                await HttpHost(url, http).call("execute_plan", arguments)
            await poll(lambda: bool(Ledger.of(tmp_path).lines("begun")))
            server.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            assert await anyio.to_thread.run_sync(server.wait) == 0, log.read_text()
        finally:
            server.kill()
            server.wait()
    records = Records(read_file(home / "planwarden.db"))
    [header] = records.headers()
    [call] = records.state(header).steps["s0"].calls
    assert (call.status, header.owner) == ("succeeded", None)
    said = log.read_text()
    assert "refused a bearer token from 127.0.0.1: unknown, expired" in said
    assert "hook 'orders' refused a request: it is not signed" in said
    assert "refused a request for a hook that this server does not have" in said
    assert "guessed" not in said and SECRET not in said
