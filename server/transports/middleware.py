"""Middleware of the HTTP server: count the values of a body before the SDK reads it, and end requests at the end."""

import asyncio

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planwarden.server.mcp.frames import EDGE_BYTES, MAX_FRAME_BYTES, build_refusal, find_request_id
from planwarden.tools.downstream.value_counter import ValueCounter


class BoundedFramesMiddleware:
    """Answers a request with too many values with 413 and an error under its id. The SDK bounds the bytes."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        body = _CountedBody(receive)
        try:
            await self._app(scope, body.receive, send)
        except _TooManyValues:
            refusal = build_refusal(find_request_id(body.head, body.tail), "the message has too many values")
            text = refusal.model_dump_json(by_alias=True, exclude_unset=True)
            await Response(text, status_code=413, media_type="application/json")(scope, receive, send)


class _TooManyValues(Exception):
    pass


class _CountedBody:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._counter = ValueCounter()
        self._is_too_much = False
        self._size = 0
        self.head = self.tail = b""

    async def receive(self) -> Message:
        """Return the next message. Reads the body to its end and raises when it has too many values."""
        message = await self._read()
        while self._is_too_much:
            if message["type"] != "http.request" or not message.get("more_body") or self._size > MAX_FRAME_BYTES:
                raise _TooManyValues
            message = await self._read()
        return message

    async def _read(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            data: bytes = message.get("body", b"")
            self._size += len(data)
            self.head = (self.head + data[:EDGE_BYTES])[:EDGE_BYTES]
            self.tail = (self.tail + data[-EDGE_BYTES:])[-EDGE_BYTES:]
            self._is_too_much = self._counter.feed(data)
        return message


ENDING = "the server is ending; what it acknowledged goes on when it runs again\n"


class CutOffMiddleware:
    """Answers 503 where uvicorn cancels a request that outlasts the time for closing and has no answer yet."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not has_begun:
                await PlainTextResponse(ENDING, 503, {"Connection": "close"})(scope, receive, send)
