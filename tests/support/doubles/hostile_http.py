"""A downstream MCP server over HTTP, in this process, whose tools answer as their names say."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
BLOCK = b"x" * 1_000_000
NAMES = (
    "good",
    "huge",
    "breaks_off",
    "gateway",
    "denied",
    "elsewhere",
    "not_json",
    "gone",
    "packed",
    "odd_packing",
    "small_packed",
    "dense",
    "dense_events",
)


@dataclass
class HttpDouble:
    """What it saw."""

    port: int = 0
    calls: list[str] = field(default_factory=list[str])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    is_refusing: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if not head[0].startswith("POST"):
            _write(writer, 405, b"")
            return True
        self.headers.append(headers)
        message: Message = json.loads(body)
        if message.get("method") == "tools/call":
            self.calls.append(message["params"]["name"])
            return await self._call(message["params"]["name"], message["id"], writer)
        _write(writer, *_answer(message))
        return True

    async def _call(self, name: str, request_id: object, writer: asyncio.StreamWriter) -> bool:
        if name == "gone":
            return False
        match name:
            case "huge":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 200000000\r\n\r\n")
                for _ in range(200):
                    writer.write(BLOCK)
                    await writer.drain()
            case "packed" | "odd_packing" | "small_packed" | "dense" | "dense_events":
                await (_write_dense if name.startswith("dense") else _write_packed)(name, request_id, writer)
            case "breaks_off":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{")
                await writer.drain()
                return False
            case "gateway":
                _write(writer, 502, b"<h1>Bad gateway</h1>", "text/html")
            case "denied":
                _write(writer, 401, b"no", "text/plain")
            case "elsewhere":
                writer.write(b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:9/mcp\r\ncontent-length: 0\r\n\r\n")
            case "not_json":
                _write(writer, 200, b"<p>hello</p>", "application/json")
            case _:
                result = {"content": [{"type": "text", "text": "fine"}]}
                _write(writer, 200, json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode())
        return True


async def _write_dense(name: str, request_id: object, writer: asyncio.StreamWriter) -> None:
    values = ",".join(["[]"] * 200_000)
    result = f'{{"content":[],"structuredContent":{{"values":[{values}]}}}}'
    body = f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"result":{result}}}'
    if name == "dense":
        _write(writer, 200, body.encode(), "application/json")
    else:
        _write(writer, 200, f"event: message\ndata: {body}\n\n".encode(), "text/event-stream")


async def _write_packed(name: str, request_id: object, writer: asyncio.StreamWriter) -> None:
    result = {"content": [{"type": "text", "text": "fine"}]}
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode()
    data = gzip.compress(body + b" " * 50_000_000 if name == "packed" else body)
    encoding = "gzip, gzip" if name == "odd_packing" else "gzip"
    head = f"content-encoding: {encoding}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + data)
    await writer.drain()


def _answer(message: Message) -> tuple[int, bytes]:
    result: Message
    match message.get("method"):
        case "initialize":
            info = {"name": "double", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]}
        case _ if "id" not in message:
            return 202, b""
        case _:
            error = {"code": -32601, "message": "Method not found"}
            return 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()
    return 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()


def _write(writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json") -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


@asynccontextmanager
async def http_double() -> AsyncGenerator[HttpDouble]:
    """Serves until it is left."""
    double = HttpDouble()
    server = await asyncio.start_server(double.serve, "127.0.0.1", 0)
    double.port = server.sockets[0].getsockname()[1]
    try:
        yield double
    finally:
        server.close()
