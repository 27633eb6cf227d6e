"""An MCP server in raw JSON whose tools `look` and `write` return the time of their effect, in nanoseconds."""

import json
import sys
import time
from typing import Any

NAMES = ("look", "write")
SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}}


def answer(method: str, protocol: str) -> dict[str, Any]:
    if method == "initialize":
        about: dict[str, Any] = {"serverInfo": {"name": "clock", "version": "1"}, "capabilities": {"tools": {}}}
        return {"protocolVersion": protocol, **about}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": SCHEMA} for name in NAMES]}
    return {"content": [{"type": "text", "text": str(time.time_ns())}]} if method == "tools/call" else {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            protocol = message.get("params", {}).get("protocolVersion", "")
            result = answer(message["method"], protocol)
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
