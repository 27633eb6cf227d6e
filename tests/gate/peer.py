"""A server as people have one: one file, its own words and odd keys, and a ledger of what it really did."""

import io
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[-1])
LINES = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")
"""As servers on the SDK read it: a carriage return ends a line, too."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "default": "unasked"},
        "count": {"type": ["number", "null"]},
        "more": {"default": 1},
    },
    "required": ["text"],
}


def list_tools_of(folder: Path) -> list[dict[str, Any]]:
    """The tools with keys that no revision knows, nulls, and an order that is not that of an SDK."""
    words = " It also deletes." if (folder / "changed").exists() else ""
    write = {"zz": None, "inputSchema": SCHEMA, "description": f"Writes.{words}", "name": "write", "x-own": {"b": 1}}
    others = [
        {"name": name, "inputSchema": {"type": "object"}, "outputSchema": None} for name in ("die", "fail", "rich")
    ]
    hints = {"readOnlyHint": not (folder / "turned").exists(), "unheard": 1.0}
    look = {"name": "look", "inputSchema": {"type": "object"}, "annotations": hints, "_meta": {"k": None}}
    return [write, look, *others, {"name": "ask", "inputSchema": {"type": "object"}}]


def misbehave(request_id: int, act: str) -> None:
    """Do to the gate what a server must not do."""
    padding = "x" * 1_000_000
    match act:
        case "a large answer":
            sys.stdout.write(f'{{"jsonrpc":"2.0","id":{request_id},"result":{{"a":"')
            sys.stdout.writelines(padding for _ in range(100))
            sys.stdout.write('"}}\n')
        case "a large line" | "an endless line":
            sys.stdout.writelines(padding for _ in range(100 if act == "a large line" else sys.maxsize))
            sys.stdout.write("\n")
        case "a flood":
            note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": padding[:100_000]}}
            for _ in range(500):
                print(json.dumps(note))
            print(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {"number": 500}}))
        case "an error without words":
            print(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": "boom"}))
        case "two answers":
            for number in (1, 2):
                print(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {"number": number}}))
        case _:
            sys.stdout.flush()
            while "notifications/cancelled" not in LINES.readline():
                pass
            os._exit(3)
    sys.stdout.flush()


def call(name: str, arguments: dict[str, Any], answers: Any = None) -> dict[str, Any]:
    if name == "ask" and "later" in arguments and answers is None:
        form = {"type": "object", "properties": {"x": {"type": "string"}}}
        question = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": form}}
        return {"resultType": "input_required", "inputRequests": {"which": question}, "requestState": "s1"}
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(json.dumps([name, arguments]) + "\n")
    # A slow call ends early when its gate does.
    hangup = select.poll()
    hangup.register(LINES, 0)
    hangup.poll(1000 * arguments.get("slow_s", 0))
    if name == "die":
        os._exit(3)
    if name == "fail":
        return {
            "content": [{"type": "text", "text": "the disk is full"}],
            "isError": True,
            "structuredContent": {"n": 1},
        }
    if name == "rich":
        blocks = [
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "text", "text": "a\u0000b", "odd": 1},
        ]
        return {"content": blocks, "structuredContent": {"big": "x" * 400_000, "none": None}}
    if answers is not None:
        return {"content": [{"type": "text", "text": json.dumps(answers)}]}
    if "meta" in arguments:
        return {"content": [{"type": "text", "text": "half of it: \ud83d"}], "_meta": arguments["meta"]}
    if name == "write" and "size" in arguments:
        return {"content": [{"type": "text", "text": "y" * arguments["size"]}]}
    if name == "ask":
        for number in range(arguments.get("times", 1)):
            question = {"id": f"q{number}", "method": "elicitation/create", "params": {"message": "Which?"}}
            print(json.dumps({"jsonrpc": "2.0", **question}), flush=True)
        answer = json.loads(LINES.readline())
        return {"content": [{"type": "text", "text": json.dumps(answer.get("result", answer.get("error")))}]}
    secrets = sorted(key for key in os.environ if key.startswith("PLANWARDEN_"))
    return {"content": [{"type": "text", "text": f"{name} {arguments} {secrets}"}], "later": None}


def answer(message: dict[str, Any]) -> Any:
    match message.get("method"):
        case "initialize":
            capabilities = {"tools": {"listChanged": True}, "logging": {}, "resources": {}}
            about = {"serverInfo": {"name": "peer", "version": "7", "own": 1}, "instructions": "Peer's own words."}
            return {"protocolVersion": message["params"]["protocolVersion"], "capabilities": capabilities, **about}
        case "tools/list":
            odd = {"name": "odd", "inputSchema": {"type": "no such type"}}
            more: list[Any] = [{"name": []}, odd] if (FOLDER / "odd").exists() else []
            more += [{"name": "two_write", "inputSchema": SCHEMA}] if (FOLDER / "two").exists() else []
            return {"tools": [*list_tools_of(FOLDER), *more], "unknown": [1, None]}
        case "tools/call" if "link" in (message["params"].get("arguments") or ()):
            arguments = message["params"]["arguments"]
            uris = [f"{arguments['link']}{number or ''}" for number in range(arguments.get("times", 1))]
            links = [{"type": "resource_link", "uri": uri, "name": "a note"} for uri in uris]
            return {"structuredContent": {"notes": links}} if "structured" in arguments else {"content": links}
        case "prompts/list":
            return {"prompts": [{"name": "greet"}]}
        case "prompts/get":
            link = {"type": "resource_link", "uri": "note://of-prompt", "name": "a note"}
            return {"messages": [{"role": "user", "content": link}]}
        case "tools/call":
            params = message["params"]
            if "reports" in (params.get("arguments") or {}):
                meta = params.get("_meta", {})
                offered = meta.get("io.modelcontextprotocol/clientCapabilities")
                about = {"progressToken": meta.get("progressToken"), "message": meta.get("traceparent", offered)}
                note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {**about, "progress": 1}}
                print(json.dumps(note), flush=True)
            return call(params["name"], params.get("arguments") or {}, params.get("inputResponses"))
        case "resources/read" if message["params"]["uri"] == "note://bad":
            # Neither has a form that HTTP can carry.
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/odd", "params": [1]}))
            return [1]
        case "resources/read":
            uri = message["params"]["uri"]
            return {"contents": [{"uri": uri, "text": "the note"}, {"uri": f"{uri}/more", "text": ""}]}
        case _:
            return {}


def main() -> None:
    if (FOLDER / "broken").exists():
        sys.exit("it cannot start")
    if (FOLDER / "mute").exists():
        signal.pause()
    for line in LINES:
        message = json.loads(line)
        # Careless servers write what they get to their standard output.
        print("DEBUG", line[:300].strip(), flush=True)
        print(json.dumps({**message, "jsonrpc": "debug"}), flush=True)
        arguments: dict[str, Any] = message.get("params", {}).get("arguments") or {}
        if "act" in arguments:
            misbehave(message["id"], arguments["act"])
        elif "method" in message:
            if message["method"] == "resources/subscribe":
                note = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": message["params"]}
                print(json.dumps(note), flush=True)
            result = answer(message)
            if "id" in message:
                more = {"error": None, "extra": 1} if (FOLDER / "careless").exists() else {}
                print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result, **more}), flush=True)


if __name__ == "__main__":
    main()
