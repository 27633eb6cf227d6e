"""A downstream MCP server over stdio that answers with changed listings, results and frames, as a call's seed says.

Run it as `python random_server.py ROOT`; ROOT is the folder that holds `tests`. The tool `echo` takes `{"seed": text}`:
the answer to that call, and to the listing that follows it, come from the seed. The first listing is a good one.
"""

import json
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])
# After the path is set: this program runs as a file, so that it starts without the tests' packages.
from tests.fuzz.inputs import Mutator

Message = dict[str, Any]
READS = {"readOnlyHint": True, "title": "Echo"}
SEED = {"type": "object", "properties": {"seed": {"type": "string"}}, "required": ["seed"]}
ECHO: Message = {"name": "echo", "description": "Says it.", "inputSchema": SEED, "annotations": READS}
SAID: Message = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
OTHERS: list[Message] = [
    {
        **ECHO,
        "name": "other",
        "title": "Other",
        "outputSchema": SAID,
        "icons": [{"src": "data:image/png;base64,AA"}],
        "_meta": {"a": 1},
    },
    {"name": "note", "inputSchema": {"type": "object", "properties": {"text": {"type": "string", "pattern": "^a"}}}},
]
RESULTS: list[Message] = [
    {"content": [{"type": "text", "text": "fine"}]},
    {"content": [{"type": "text", "text": "no"}], "isError": True},
    {"content": [], "structuredContent": {"said": "x", "more": [1, 2.5, None]}},
    {
        "content": [
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "inside"}},
            {"type": "resource_link", "uri": "file:///b", "name": "b"},
        ],
        "_meta": {"x": 1},
    },
    {"resultType": "input_required", "inputRequests": {"a": {"method": "elicitation/create", "params": {}}}},
    {"resultType": "task", "task": {"taskId": "t", "status": "working", "ttl": 5, "createdAt": "x"}},
]
FRAMES: list[Message] = [
    {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1, "total": 2}},
    {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "error", "data": "x"}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    {"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": {"elicitationId": "x"}},
    {"jsonrpc": "2.0", "id": "q", "method": "ping"},
    {"jsonrpc": "2.0", "id": "r", "method": "roots/list", "params": {}},
    {
        "jsonrpc": "2.0",
        "id": "e",
        "method": "elicitation/create",
        "params": {"mode": "form", "message": "How many?", "requestedSchema": {"type": "object", "properties": {}}},
    },
    {"jsonrpc": "2.0", "id": 99_999, "result": {}},
    {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "x"}},
]
CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def answer(request_id: object, result: Message) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode())


def answer_call(request_id: object, mutator: Mutator) -> None:
    """Sends up to two changed messages of other kinds, and then the answer."""
    for _ in range(mutator.random.randrange(3)):
        write(mutator.encode(mutator.mutate(mutator.pick(FRAMES), FRAMES)))
    if mutator.chance(0.1):
        write(CHANGED)
    if mutator.chance(0.1):
        error = mutator.mutate({"code": -32602, "message": "no", "data": {"x": 1}})
        write(mutator.encode({"jsonrpc": "2.0", "id": request_id, "error": error}))
        return
    result = mutator.mutate(mutator.pick(RESULTS), RESULTS)
    write(mutator.encode({"jsonrpc": "2.0", "id": request_id, "result": result}))


def main() -> None:
    mutator: Mutator | None = None
    for line in sys.stdin.buffer:
        message: Message = json.loads(line)
        request_id = message.get("id")
        match message.get("method"):
            case "initialize":
                info = {"name": "double", "version": "1"}
                abilities = {"tools": {"listChanged": True}}
                answer(request_id, {"protocolVersion": "2025-11-25", "capabilities": abilities, "serverInfo": info})
            case "tools/list":
                listing: Message = {"tools": [ECHO, *OTHERS]}
                answer(request_id, mutator.mutate(listing, [listing]) if mutator is not None else listing)
            case "tools/call":
                mutator = Mutator(message["params"]["arguments"]["seed"])
                answer_call(request_id, mutator)
            case _:
                # Notifications, and answers to what it asked.
                pass


main()
