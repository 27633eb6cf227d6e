"""MCP over standard input and output, with a real process: only the protocol, bounded frames, and a clean end."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planwarden.server.mcp.frames import MAX_FRAME_BYTES
from planwarden.tools.downstream.value_counter import MAX_VALUES
from tests.kit import first_only, plan, requirement, tool_step
from tests.support.forking import forked_command_line

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
    command = [*COMMAND, "call", "nosuch", "--json", "--home", str(home)]
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
