"""How long a person waits for a process that has just been started.

* Cold resume: a fresh process answers one of many suspended executions and runs the rest. From start to exit.
* First answer: an MCP server over standard input and output, from its start to the answers to `initialize` and
  `tools/list`, beside an empty server made with the same SDK.
* Commands: `list`, `show` and `approve` as a person runs them, on a home with a hundred open questions. They get a
  terminal, on which `y` is typed as soon as a question appears.

The operating system has the files in its cache, as it has on every start but the first of the day.
"""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self

from benchmarks.child import read_memory
from benchmarks.harness import Child

SETTLE_S = 1.0
STARTS = 9
WAITING = 100
WITH_HANDSHAKE = "2025-06-18"
VERSIONS = (WITH_HANDSHAKE, "2026-07-28")
"""Of the protocol: the last one with a handshake, and the first one without."""

PROGRAM = (sys.executable, "-m", "planwarden.server.main")
EMPTY = (sys.executable, "-c", 'from mcp.server import MCPServer; MCPServer("empty").run("stdio")')
"""Shows what every server made with this SDK imports before it can answer."""

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Of started processes: an installed package has its bytecode, so all but the first start have to find it, too."""

TOOLS = """
import planwarden
from benchmarks.side import FUNCTIONS

mark = planwarden.tool(risk="read", effect="effect")
globals().update({function.__name__: mark(function) for function in FUNCTIONS})
"""


class RawServer:
    """A server as a process, and a client that writes JSON by hand, which costs next to nothing."""

    def __init__(self, command: Sequence[str], version: str = WITH_HANDSHAKE, **environment: str) -> None:
        """Start the process, and wait for its first answer."""
        self.started = time.perf_counter()
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, env={**ENVIRONMENT, **environment}, **pipes)
        self._numbers, self._meta = count(1), dict[str, Any]()
        client = {"name": "benchmark", "version": "1"}
        if version == WITH_HANDSHAKE:
            self.call("initialize", protocolVersion=version, capabilities={}, clientInfo=client)
            self._send(method="notifications/initialized")
        else:
            names = {"protocolVersion": version, "clientCapabilities": {}, "clientInfo": client}
            self._meta = {"_meta": {f"io.modelcontextprotocol/{name}": value for name, value in names.items()}}
            self.call("server/discover")
        self.first_s = self.measure_age()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)

    def measure_age(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self.started

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a request and return its result; what the server notifies of is skipped."""
        number = next(self._numbers)
        self._send(id=number, method=method, params={**parameters, **self._meta})
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number and "method" not in message:
                if "result" not in message:
                    raise RuntimeError(f"the server refused {method}: {message.get('error')}")
                return message["result"]
        raise RuntimeError(f"the server ended before it answered {method}; {self.process.args} says why")

    def _send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()


def measure_server(command: Sequence[str], version: str = WITH_HANDSHAKE, **environment: str) -> dict[str, float]:
    """Return seconds from the start to the first answer and to that of `tools/list`, and bytes held a second later."""
    with RawServer(command, version, **environment) as server:
        server.call("tools/list")
        tools_s = server.measure_age()
        time.sleep(SETTLE_S)
        return {"first": server.first_s, "tools_list": tools_s, "idle_bytes": read_memory(server.process.pid, "VmRSS")}


def measure_first_answers(home: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return what `measure_server` does, by version of the protocol and server."""
    servers = {"planwarden": (*PROGRAM, "serve"), "empty": EMPTY}
    samples: dict[str, Any] = {version: {name: {} for name in servers} for version in VERSIONS}
    for turn in range(STARTS + 1):
        for version in VERSIONS:
            for name, command in servers.items():
                for key, value in measure_server(command, version, PLANWARDEN_HOME=str(home)).items():
                    # The first start of each compiles what was not compiled and creates the database.
                    samples[version][name].setdefault(key, []).extend([value] if turn else [])
    return samples


def measure_cold_resume(home: Path, waiting: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return seconds of a process that resumes one of many executions, and of Python alone."""
    # The disk still writes what was made for the figures before.
    os.sync()
    seconds: dict[str, list[float]] = {"seconds": [], "interpreter": []}
    imported = ""
    for ids in waiting[:STARTS]:
        for key, words in (("interpreter", ("-c", "")), ("seconds", ("-m", "benchmarks.planwarden_side", home, *ids))):
            began = time.perf_counter()
            output = subprocess.run(
                [sys.executable, *words], check=True, stdout=subprocess.PIPE, env=ENVIRONMENT
            ).stdout
            seconds[key].append(time.perf_counter() - began)
            imported = output or imported
    return {**seconds, "imported": json.loads(imported)}


def measure_commands(home: Path) -> Mapping[str, list[float]]:
    """Return seconds from start to exit of each command, without the first of each, which finds no bytecode."""
    home.mkdir(mode=0o700, parents=True)
    (home / "tools.py").write_text(TOOLS, encoding="utf-8")
    (home / "planwarden.toml").write_text('[tools]\npython = ["tools.py"]\n', encoding="utf-8")
    with Child("planwarden_side", "home", home) as child:
        waiting = child.call("suspend", count=WAITING)["value"]
    os.sync()
    seconds: dict[str, list[float]] = {"list": [], "show": [], "approve": []}
    for turn, (thread_id, suspension_id) in enumerate(waiting[: STARTS + 1]):
        for name, words in {"list": (), "show": (thread_id,), "approve": (suspension_id,)}.items():
            taken = _run_on_terminal(*PROGRAM, "--home", str(home), name, *words)
            seconds[name] += [taken] if turn else []
    return seconds


def _run_on_terminal(*command: str) -> float:
    ours, theirs = pty.openpty()
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        shown, is_answered = b"", False
        while block := _read(ours):
            shown += block
            if not is_answered and b"Enter leaves it open]" in shown:
                os.write(ours, b"y\n")
                is_answered = True
        code = process.wait()
    os.close(ours)
    if code:
        raise RuntimeError(f"{command} ended with {code}: {shown.decode(errors='replace')[-500:]}")
    return time.perf_counter() - began


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        # Linux says EIO when the last process has closed its side.
        return b""
