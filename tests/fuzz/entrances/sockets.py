"""Real sockets: damaged HTTP for the server with its inbox."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from planwarden.server.settings.configuration import Settings
from tests.fuzz.corpus import CLIENT, Document
from tests.fuzz.entrance import Wrong
from tests.fuzz.entrances.frames import make_message
from tests.fuzz.mutation import Mutator
from tests.harness.clients import build_headers
from tests.server.mcp.http_support import serving

HTTP_TOKENS = (
    *(b"\r\n", b"\n", b"\0", b"\xff", b" ", b":", b"HTTP/9.9", b"Transfer-Encoding: chunked\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Expect: 100-continue\r\n"),
    *(b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"A: " + b"b" * 70_000 + b"\r\n", b"/../", b"%00"),
    *(b"GET /inbox HTTP/1.1\r\n\r\n",),
)
PATHS = (b"/mcp", b"/mcp", b"/mcp", b"/inbox", b"/inbox/pair", b"/")
ANSWER_S = 0.5


class Sockets:
    """Sends one damaged request a connection; half of them end in the middle."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._host, self._port = parts.hostname, parts.port

    async def send(self, mutator: Mutator) -> str:
        method, name, message = make_message(mutator, "t", "s")
        data = self._build(mutator.encode(message), build_headers(method, name), mutator.pick(PATHS))
        mutator.sent = data = mutator.damage(data, HTTP_TOKENS) if mutator.chance(0.8) else data
        return self._judge(await self._exchange(data, ends=mutator.chance(0.5)))

    async def check_alive(self) -> None:
        params: Document = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
        head = {b"Accept": b"application/json, text/event-stream", b"Content-Type": b"application/json"}
        answer = await self._exchange(self._build(body, head, PATHS[0]), ends=False)
        if b" 200 " not in answer[:20]:
            raise Wrong(f"`initialize` was answered {answer[:500]!r}")

    def _build(self, body: bytes, headers: dict[bytes, bytes], path: bytes) -> bytes:
        lines = [b"%s: %s" % (name, value) for name, value in headers.items()]
        first = b"POST %s HTTP/1.1\r\nHost: %s:%d" % (path, self._host.encode(), self._port)
        length = b"Content-Length: %d" % len(body)
        return b"\r\n".join([first, *lines, length, b"", body])

    async def _exchange(self, data: bytes, *, ends: bool) -> bytes:
        """What comes back in a short time, or until the server closes."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        found = b""
        try:
            writer.write(data)
            if ends:
                writer.write_eof()
            with anyio.move_on_after(ANSWER_S):
                await writer.drain()
                while chunk := await reader.read(65_536):
                    found += chunk
                    if b"\r\n\r\n" in found:
                        break
        except ConnectionError:
            return found or b"reset"
        finally:
            writer.close()
        return found

    @staticmethod
    def _judge(answer: bytes) -> str:
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "no answer"
        if status.startswith("5") and status != "501":
            raise Wrong(f"status {status}: {answer[:500]!r}")
        return status


@asynccontextmanager
async def open_sockets(home: Path) -> AsyncGenerator[Sockets]:
    async with serving(Settings(home=home, opens_inbox=False)) as url:
        sockets = Sockets(url)
        await sockets.check_alive()
        yield sockets
