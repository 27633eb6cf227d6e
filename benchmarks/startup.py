"""How long a person waits for a process that has just been started.

* Cold resume: a fresh process answers one of many suspended executions and runs the rest. From `fork` to exit.
* First answer: an MCP server over standard input and output, from `fork` to the answers to `initialize` and
  `tools/list`, against an empty server made with the same SDK.

The operating system has the files in its cache, as it has on every start but the first of the day.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SERVER = "planwarden.server.main"
TIMEOUT_S = 60.0
SETTLE_S = 1.0
WITH_HANDSHAKE = "2025-06-18"
VERSIONS = (WITH_HANDSHAKE, "2026-07-28")
"""Of the protocol: the last one with a handshake, and the first one without."""

EMPTY_COMMAND = (sys.executable, "-m", "benchmarks.empty_server")
SERVER_COMMAND = (sys.executable, "-m", SERVER, "serve")

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Of started processes: an installed package has its bytecode, so all but the first start have to find it, too."""


class NoAnswer(RuntimeError):
    """The server did not start, or did not speak the protocol."""


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """Seconds from the start of the process."""

    first_s: float
    """To the answer to `initialize`, or to `server/discover` from version 2026-07-28 on."""
    tools_s: float
    """To the answer to `tools/list`, which follows at once."""
    idle_bytes: int
    """Memory of the process a second later, when it has nothing to do; 0 where the system does not say it."""


def has_server() -> bool:
    """Returns whether this tree has an MCP server to measure."""
    return find_spec(SERVER) is not None


def cold_resume(home: Path, thread_id: str, suspension_id: str) -> tuple[float, dict[str, Any]]:
    """Seconds from start to exit of the process, and what it says about itself."""
    return timed("benchmarks.cold_resume", str(home), thread_id, suspension_id)


def timed(module: str, *arguments: str) -> tuple[float, dict[str, Any]]:
    """Seconds from start to exit of `python -m module`, and the JSON that it prints."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        env=ENVIRONMENT,
    )
    return time.perf_counter() - start, json.loads(done.stdout)


def interpreter() -> float:
    """Seconds that Python itself needs to start and end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, timeout=TIMEOUT_S)
    return time.perf_counter() - start


def first_answer(command: Sequence[str], environment: Mapping[str, str], version: str) -> FirstAnswer:
    """Start a server, shake hands with it, ask for its tools, and stop it. Raises `NoAnswer`."""
    client: dict[str, Any] = {"name": "benchmark", "version": "1"}
    meta: dict[str, Any] = {}
    if version == WITH_HANDSHAKE:
        opening: dict[str, Any] = {"method": "initialize"}
        opening["params"] = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    else:
        names = {"protocolVersion": version, "clientCapabilities": {}, "clientInfo": client}
        meta = {"_meta": {f"io.modelcontextprotocol/{name}": value for name, value in names.items()}}
        opening = {"method": "server/discover", "params": meta}
    start = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**ENVIRONMENT, **environment},
        ) as process,
    ):
        try:
            send(process, {"id": 1, **opening})
            read_answer(process, 1)
            first_s = time.perf_counter() - start
            if version == WITH_HANDSHAKE:
                send(process, {"method": "notifications/initialized"})
            send(process, {"id": 2, "method": "tools/list", "params": meta})
            read_answer(process, 2)
            tools_s = time.perf_counter() - start
            time.sleep(SETTLE_S)
            idle_bytes = _resident_bytes(process.pid)
        except (RuntimeError, OSError) as error:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["it wrote no error"])[-1]
            raise NoAnswer(f"{error}: {last}") from error
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return FirstAnswer(first_s, tools_s, idle_bytes)


def _resident_bytes(pid: int) -> int:
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return 0 if found is None else int(found[1]) * 1024


def send(process: "subprocess.Popen[str]", message: Mapping[str, Any]) -> None:
    """Sends a request or a notification, as the client of the server."""
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()


def read_answer(process: "subprocess.Popen[str]", request_id: int | str) -> dict[str, Any]:
    """Returns the result of the request; skips notifications in between."""
    assert process.stdout is not None
    for line in process.stdout:
        message: dict[str, Any] = json.loads(line)
        if message.get("id") == request_id and "method" not in message:
            if "result" not in message:
                raise RuntimeError(f"the server refused request {request_id}: {message.get('error')}")
            return message["result"]
    raise RuntimeError(f"the server ended before it answered request {request_id}")
