"""A program between a client and its server: it forwards every byte, and records each message as a line of JSON.

`python tap.py FOLDER MODE COMMAND...` appends to `FOLDER/wire.jsonl`. With `kill` it kills the server with SIGKILL once
it has forwarded the first answer that says `suspended`, one time for each folder; with `keep` it never does. With
`killed`, `hanging` and `garbage` something befalls the server when the hook of its host calls `guard_call`: it is
killed, its answer is withheld, or its answer has garbage in place of the decision. It needs only the standard library.
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

FAULTS = ("killed", "hanging", "garbage")


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


def main(folder: Path, mode: str, command: list[str]) -> int:
    """Returns the server's exit code, or 137 after a kill."""
    killed = folder / "killed"
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: server.send_signal(received))
    judged: list[object] = []
    """Requests that call `guard_call`."""

    def pass_requests() -> None:
        assert server.stdin is not None
        with contextlib.suppress(OSError):
            for line in sys.stdin.buffer:
                message = record(folder, "client", line)
                if message.get("method") == "tools/call" and message["params"]["name"] == "guard_call":
                    judged.append(message["id"])
                    if mode == "killed":
                        server.kill()
                        os._exit(137)
                server.stdin.write(line)
                server.stdin.flush()
            server.stdin.close()

    threading.Thread(target=pass_requests, daemon=True).start()
    assert server.stdout is not None
    for line in server.stdout:
        message = record(folder, "server", line)
        if mode in FAULTS and message.get("id") in judged and "result" in message:
            if mode == "hanging":
                continue
            message["result"]["content"] = [{"type": "text", "text": "this is no answer {{{"}]
            line = json.dumps(message).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        if mode == "kill" and is_suspended(message) and not killed.exists():
            server.kill()
            server.wait()
            killed.write_text(f"{server.pid}\n", encoding="utf-8")
            return 137
    return server.wait()


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    # The thread may still read standard input, and an ordinary exit would wait for it.
    os._exit(code)
