"""A downstream MCP server over stdio with its own ledger: `python -m tests.harness.desk STAGE`.

It uses neither planwarden nor the SDK, so that it starts quickly. Each call runs on a thread of its own and is noted as
`begun` at once, so that the ledger knows of every call that this process may still carry out.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.ledger import Ledger, Manner, carry_out

Message = dict[str, Any]
STAGE = Path(sys.argv[1])
REPORT_LINES = 4_000
"""Makes a result of about 400 KB, which is too large for the log."""
_OUT = threading.Lock()


def carry(name: str, key: str, arguments: Message) -> Message:
    return carry_out(STAGE, key, f"desk_{name}", arguments, is_effect=name != "peek", may_die=True)


def look(name: str, key: str, arguments: Message) -> Message:
    threading.Event().wait(arguments.get("seconds", 0))
    return {"article": arguments.get("article"), "price": 12, "inStock": True}


def report(name: str, key: str, arguments: Message) -> Message:
    line = f"{arguments['note']} sold, and nobody knows to whom or why; {'-' * 40}"
    return {"lines": [f"{number}: {line}" for number in range(REPORT_LINES)]}


def collapse(name: str, key: str, arguments: Message) -> Message:
    os._exit(3)


PAYMENT = {"amount": "integer", "to": "string"}
TOOLS: dict[str, tuple[str, dict[str, str], bool, Callable[[str, str, Message], Message]]] = {
    "peek": ("Look at the desk.", {}, False, carry),
    "charge": ("Charge somebody.", PAYMENT, False, carry),
    "note": ("Write a line.", PAYMENT, False, carry),
    "order": ("Order something, once for each call.", {"note": "string"}, False, carry),
    "look": ("Look at an article.", {"article": "string"}, True, look),
    "browse": ("Look around for a while.", {"seconds": "number"}, True, look),
    "report": ("Everything that was ever sold.", {"note": "string"}, True, report),
    "collapse": ("End the server.", {}, True, collapse),
}
"""Description, types of the arguments, whether it says that it only reads, and what it does."""


def list_tools() -> list[Message]:
    return [
        {
            "name": name,
            "description": description,
            "annotations": {"readOnlyHint": is_read},
            "inputSchema": {
                "type": "object",
                "properties": {argument: {"type": kind} for argument, kind in kinds.items()},
                "required": [*kinds],
            },
        }
        for name, (description, kinds, is_read, _) in TOOLS.items()
    ]


def send(**message: Any) -> None:
    with _OUT:
        sys.stdout.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
        sys.stdout.flush()


def call(request_id: object, key: str, name: str, arguments: Message) -> None:
    value = TOOLS[name][3](name, key, arguments)
    content = [{"type": "text", "text": json.dumps(value)}]
    send(id=request_id, result={"content": content, "structuredContent": value})


def answer(message: Message) -> None:
    method, request_id, params = message.get("method"), message.get("id"), message.get("params", {})
    if request_id is None:
        return
    match method:
        case "tools/call":
            key = params.get("_meta", {}).get("planwarden/idempotencyKey", "")
            Ledger.of(STAGE).write("begun", key=key)
            threading.Thread(target=call, args=(request_id, key, params["name"], params.get("arguments", {}))).start()
        case "initialize":
            info = {"name": "desk", "version": "1"}
            result: Message = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            send(id=request_id, result=result)
        case "tools/list":
            threading.Event().wait(Manner.read(STAGE).list_s)
            send(id=request_id, result={"tools": list_tools()})
        case _:
            send(id=request_id, error={"code": -32601, "message": "Method not found"})


def main() -> None:
    Ledger.of(STAGE).write("desk", parent=os.getppid())
    for line in sys.stdin:
        answer(json.loads(line))


if __name__ == "__main__":
    main()
