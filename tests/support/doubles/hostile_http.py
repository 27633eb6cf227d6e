"""A downstream MCP server over HTTP, in this process, whose tools answer as their names say."""

import gzip
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from anyio.abc import ByteStream

from tests.support.network import build_reply
from tests.tools.web.support import Site, serve

DENSE = f'{{"content":[],"structuredContent":{{"values":[{",".join(["[]"] * 200_000)}]}}}}'
FINE = json.dumps({"content": [{"type": "text", "text": "fine"}]})
INFO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "d", "version": "1"},
}


@dataclass
class HttpDouble:
    site: Site | None = None
    calls: list[str] = field(default_factory=list[str])
    handshake: str = ""
    """The name of the answer to a handshake; empty for a good one."""

    @property
    def url(self) -> str:
        return self._site.url("/mcp")

    @property
    def headers(self) -> list[dict[str, str]]:
        return [request.headers for request in self._site.received if request.method == "POST"]

    @property
    def _site(self) -> Site:
        assert self.site is not None
        return self.site

    async def answer(self, stream: ByteStream) -> None:
        request = self._site.received[-1]
        if request.method != "POST":
            await stream.send(build_reply(status=405))
            return
        message: dict[str, Any] = json.loads(request.body)
        request_id = json.dumps(message.get("id"))
        match message.get("method"):
            case "initialize":
                good = _reply(request_id, json.dumps(INFO), mcp_session_id="1")
                await stream.send(ANSWERS[self.handshake](request_id) if self.handshake else good)
            case "tools/list":
                await stream.send(_reply(request_id, json.dumps(LISTING)))
            case "tools/call":
                self.calls.append(message["params"]["name"])
                await _answer_call(self.calls[-1], request_id, stream)
            case _ if "id" not in message:
                await stream.send(build_reply(status=202))
            case _:
                await stream.send(_reply(request_id, '{"code": -32601, "message": "Method not found"}', "error"))


def _message(request_id: str, key: str, value: str) -> str:
    return f'{{"jsonrpc":"2.0","id":{request_id},"{key}":{value}}}'


def _reply(request_id: str, value: str, key: str = "result", status: int = 200, **headers: str) -> bytes:
    return build_reply(_message(request_id, key, value), status, content_type="application/json", **headers)


def _pack(data: str, encoding: str) -> bytes:
    return build_reply(gzip.compress(data.encode()), content_type="application/json", content_encoding=encoding)


def _fine(request_id: str) -> str:
    return _message(request_id, "result", FINE)


def _events(*messages: str) -> bytes:
    return build_reply(
        "".join(f"event: message\ndata: {message}\n\n" for message in messages), content_type="text/event-stream"
    )


PINGS = [f'{{"jsonrpc":"2.0","id":"q{number}","method":"ping"}}' for number in range(500)]
ANSWERS: dict[str, Callable[[str], bytes]] = {
    "breaks_off": lambda _: build_reply("{", content_type="application/json", content_length="50"),
    "gateway": lambda _: build_reply("<h1>Bad gateway</h1>", 502),
    "gateway_json": lambda _: build_reply('{"message": "timed out"}', 504, content_type="application/json"),
    "login_page": lambda _: build_reply("<h1>Log in</h1>", content_type="text/html"),
    "accepted": lambda _: build_reply(status=202),
    "own_error": lambda request_id: _reply(request_id, '{"code": -32603, "message": "no such account"}', "error", 500),
    "expired": lambda _: _reply("null", '{"code": -32001, "message": "Session not found"}', "error", 404),
    "refused": lambda _: build_reply('{"message": "no"}', 400, content_type="application/json"),
    "missing": lambda _: build_reply("no", 404, content_type="text/plain"),
    "denied": lambda _: build_reply("no", 401, content_type="text/plain"),
    "elsewhere": lambda _: build_reply(status=307, location="http://127.0.0.1:9/mcp"),
    "not_json": lambda _: build_reply("<p>hello</p>", content_type="application/json"),
    "ends_early": lambda _: build_reply(": nothing follows\n\n", content_type="text/event-stream"),
    "gone": lambda _: b"",
    "packed": lambda request_id: _pack(_fine(request_id) + " " * 50_000_000, "gzip"),
    "bad_packing": lambda _: build_reply("<h1>", content_type="application/json", content_encoding="gzip"),
    "odd_packing": lambda request_id: _pack(_fine(request_id), "gzip, gzip"),
    "small_packed": lambda request_id: _pack(_fine(request_id), "gzip"),
    "dense": lambda request_id: _reply(request_id, DENSE),
    "dense_events": lambda request_id: _events(_message(request_id, "result", DENSE)),
    "asks": lambda request_id: _events(*PINGS, _fine(request_id)),
    "good": lambda request_id: _reply(request_id, FINE),
}
LISTING = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in (*ANSWERS, "huge")]}


async def _answer_call(name: str, request_id: str, stream: ByteStream) -> None:
    if name == "huge":
        await stream.send(build_reply(content_type="application/json", content_length="100000000"))
        for _ in range(100):
            await stream.send(b"x" * 1_000_000)
    else:
        await stream.send(ANSWERS[name](request_id))


@asynccontextmanager
async def http_double() -> AsyncGenerator[HttpDouble]:
    double = HttpDouble()
    async with serve({"/mcp": double.answer}) as double.site:
        yield double
