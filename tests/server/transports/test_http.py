"""What happens to requests that outlast the server, and to those that break off."""

import asyncio
from pathlib import Path

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from planwarden.server.settings.configuration import Settings
from planwarden.server.transports.cut_off import CutOffMiddleware
from planwarden.server.transports.http import serve_http

pytestmark = pytest.mark.anyio


async def _cut_off(*answered: Message) -> list[Message]:
    """What a request receives whose handler sends `answered`, and is cancelled while it waits."""
    sent: list[Message] = []
    waiting = asyncio.Event()

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        for message in answered:
            await send(message)
        waiting.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        raise AssertionError("nobody asks for more")

    async def send(message: Message) -> None:
        sent.append(message)

    task = asyncio.create_task(_run(CutOffMiddleware(handle), receive, send))
    await waiting.wait()
    task.cancel()
    await task
    return sent


async def _run(app: CutOffMiddleware, receive: Receive, send: Send) -> None:
    await app({"type": "http"}, receive, send)


async def test_a_request_that_is_cut_off_before_its_answer_is_told_that_the_server_ends() -> None:
    start, body = await _cut_off()
    assert start["status"] == 503 and b"the server is ending" in body["body"]


async def test_an_answer_that_has_begun_is_left_as_it_is() -> None:
    begun: Message = {"type": "http.response.start", "status": 200, "headers": []}
    assert await _cut_off(begun) == [begun]


async def test_a_body_that_is_not_http_gets_400_and_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ready, addresses, answer = anyio.Event(), list[str](), b""

    def started(address: str) -> None:
        addresses.append(address)
        ready.set()

    async def serve() -> None:
        await serve_http(Settings(home=tmp_path), port=0, started=started)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await ready.wait()
            host, _, port = addresses[0].removeprefix("http://").removesuffix("/mcp").partition(":")
            async with await anyio.connect_tcp(host, int(port)) as connection:
                head = f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
                await connection.send(f"{head}not a chunk\r\n".encode())
                answer = await connection.receive()
            tasks.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 400") and not [record for record in caplog.records if record.exc_info]
