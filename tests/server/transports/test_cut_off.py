"""What a request gets that outlasts the server."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from planwarden.server.transports.cut_off import CutOffMiddleware

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
    """ours: no traceback, no 500"""
    start, body = await _cut_off()
    assert start["status"] == 503 and b"the server is ending" in body["body"]


async def test_an_answer_that_has_begun_is_left_as_it_is() -> None:
    """ours: a second start would be a fault of its own"""
    begun: Message = {"type": "http.response.start", "status": 200, "headers": []}
    assert await _cut_off(begun) == [begun]
