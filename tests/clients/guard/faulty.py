"""An MCP server that serves until the hook of its host calls `guard_call`, and then fails.

`python faulty.py killed|hanging|garbage COMMAND...`: the server is killed, its answer is withheld, or its answer has
garbage in place of the decision. It forwards everything else, and needs only the standard library.
"""

import json
import os
import subprocess
import sys
import threading
from typing import Any

GARBAGE = "this is no answer {{{"


def find_guard_call(line: bytes) -> object:
    """Returns the id of the request if it calls `guard_call`; else None."""
    message: dict[str, Any] = json.loads(line)
    is_guard = message.get("method") == "tools/call" and message["params"]["name"] == "guard_call"
    return message["id"] if is_guard else None


def main(fault: str, command: list[str]) -> int:
    """Returns the server's exit code."""
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    asked: list[object] = []

    def forward_requests() -> None:
        assert server.stdin is not None
        for line in sys.stdin.buffer:
            found = find_guard_call(line)
            if found is not None and fault == "killed":
                server.kill()
                os._exit(137)
            asked.append(found)
            server.stdin.write(line)
            server.stdin.flush()
        server.stdin.close()

    threading.Thread(target=forward_requests, daemon=True).start()
    assert server.stdout is not None
    for line in server.stdout:
        message: dict[str, Any] = json.loads(line)
        if message.get("id") is not None and message["id"] in asked and "result" in message:
            if fault == "hanging":
                continue
            message["result"]["content"] = [{"type": "text", "text": GARBAGE}]
            line = json.dumps(message).encode() + b"\n"
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    return server.wait()


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    # The thread may still read standard input, and an ordinary exit would wait for it.
    os._exit(code)
