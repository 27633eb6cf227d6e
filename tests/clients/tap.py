"""A program between a client and its server: it forwards every byte, and records each message as a line of JSON.

`python tap.py FOLDER [--keep] COMMAND...` appends to `FOLDER/wire.jsonl`. After it forwards the first answer that says
`suspended`, it kills the server with SIGKILL: once for each folder, and never with `--keep`. For speed it needs only
the standard library.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

KEEP = "--keep"


def record(folder: Path, speaker: str, line: bytes) -> dict[str, Any]:
    """Records the message of the line and returns it; empty when there is none."""
    try:
        message: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    with (folder / "wire.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps({"from": speaker, "message": message}) + "\n")
    return message


def is_suspended(message: dict[str, Any]) -> bool:
    """Whether the message is a tool's result, direct or from a task, that says that an execution waits."""
    result: dict[str, Any] = message.get("result") or {}
    result = result.get("result") or result
    content: dict[str, Any] = result.get("structuredContent") or {}
    return content.get("status") == "suspended"


def pass_requests(folder: Path, server: "subprocess.Popen[bytes]") -> None:
    """Forwards everything from the client until its stream ends."""
    assert server.stdin is not None
    with contextlib.suppress(OSError):
        for line in sys.stdin.buffer:
            record(folder, "client", line)
            server.stdin.write(line)
            server.stdin.flush()
        server.stdin.close()


def main(folder: Path, words: list[str]) -> int:
    """Returns the server's exit code, or 137 after the kill."""
    keeps, command = words[0] == KEEP, words[1:] if words[0] == KEEP else words
    killed = folder / "killed"
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: server.send_signal(received))
    threading.Thread(target=pass_requests, args=(folder, server), daemon=True).start()
    assert server.stdout is not None
    for line in server.stdout:
        message = record(folder, "server", line)
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        if is_suspended(message) and not keeps and not killed.exists():
            server.kill()
            server.wait()
            killed.write_text(f"{server.pid}\n", encoding="utf-8")
            return 137
    return server.wait()


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2:])
    # The thread may still read standard input, and an ordinary exit would wait for it.
    os._exit(code)
