"""A downstream MCP server over stdio with its own ledger: `python -m tests.campaign.desk STAGE`.

It uses neither planwarden nor the SDK, so that it starts quickly. Each call runs on a thread of its own and is noted as
`begun` at once, so that the ledger knows of every call that this process may still carry out.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from tests.campaign.ledger import Ledger
from tests.campaign.manner import Manner, die_if_planned

Message = dict[str, Any]

PAYMENT: Message = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "to": {"type": "string"}},
    "required": ["amount", "to"],
}
TOOLS: list[Message] = [
    {"name": "peek", "description": "Look at the desk.", "inputSchema": {"type": "object", "properties": {}}},
    {"name": "charge", "description": "Charge somebody.", "inputSchema": PAYMENT},
    {"name": "note", "description": "Write a line.", "inputSchema": PAYMENT},
]
EFFECTS = ("charge", "note")
_OUT = threading.Lock()


def send(message: Message) -> None:
    with _OUT:
        sys.stdout.write(f"{json.dumps(message)}\n")
        sys.stdout.flush()


def call(stage: Path, ledger: Ledger, request_id: object, params: Message) -> None:
    name, arguments, manner = params["name"], params.get("arguments", {}), Manner.read(stage)
    key = params.get("_meta", {}).get("planwarden/idempotencyKey", "")
    manner.pause()
    if name in EFFECTS:
        die_if_planned(stage, "before")
        ledger.write("done", key=key, tool=f"desk_{name}", arguments=arguments)
        die_if_planned(stage, "after")
    manner.pause()
    value: Message = {"receipt": key, "code": "c7"}
    content = [{"type": "text", "text": json.dumps(value)}]
    send({"jsonrpc": "2.0", "id": request_id, "result": {"content": content, "structuredContent": value}})
    ledger.write("ended", key=key)


def answer(stage: Path, ledger: Ledger, message: Message) -> None:
    method, request_id = message.get("method"), message.get("id")
    if request_id is None or method is None:
        return
    if method == "tools/call":
        params = message["params"]
        ledger.write("begun", key=params.get("_meta", {}).get("planwarden/idempotencyKey", ""))
        threading.Thread(target=call, args=(stage, ledger, request_id, params)).start()
        return
    result: Message
    match method:
        case "initialize":
            info = {"name": "desk", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            threading.Event().wait(Manner.read(stage).list_s)
            result = {"tools": TOOLS}
        case _:
            send({"jsonrpc": "2.0", "id": request_id, "error": {"code": -32601, "message": "Method not found"}})
            return
    send({"jsonrpc": "2.0", "id": request_id, "result": result})


def main() -> None:
    stage = Path(sys.argv[1])
    ledger = Ledger(stage)
    ledger.write("desk", parent=os.getppid())
    for line in sys.stdin:
        answer(stage, ledger, json.loads(line))


if __name__ == "__main__":
    main()
