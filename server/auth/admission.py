"""Lets requests in: without a token while the server is open, and for as long as the token of each of them is valid."""

import asyncio

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planwarden.server.auth.tokens import TokenCheck

WATCH_S = 5.0
"""Every so many seconds it is looked whether the token of a request that is still answered has ended."""


class AdmissionMiddleware:
    """ASGI middleware for `path`; other paths pass unchanged. The SDK's middleware below it refuses what has no token.

    An answer whose token ends while it is sent, such as an open stream, ends too. What the request started goes on.
    """

    def __init__(self, app: ASGIApp, check: TokenCheck, path: str) -> None:
        self._app = app
        self._check = check
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        if await self._check.is_open():
            scope = {**scope, "headers": list(scope["headers"])}
            MutableHeaders(scope=scope)["authorization"] = f"Bearer {self._check.pass_key}"
        token = Headers(scope=scope).get("authorization", "").partition(" ")[2]
        answer = _Answer(send)
        with anyio.CancelScope() as request:
            watch = asyncio.create_task(self._watch(token, request))
            try:
                await self._app(scope, receive, answer.send)
            finally:
                watch.cancel()
        if request.cancelled_caught:
            await answer.end(scope, receive)

    async def _watch(self, token: str, request: anyio.CancelScope) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            if await self._check.has_ended(token):
                request.cancel()


class _Answer:
    """What was sent of the answer to one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sent: Message | None = None

    async def send(self, message: Message) -> None:
        self._sent = message
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive) -> None:
        if self._sent is None:
            document = {"error": "invalid_token", "error_description": "Authentication required"}
            await JSONResponse(document, 401, {"www-authenticate": "Bearer"})(scope, receive, self._send)
        elif self._sent["type"] == "http.response.start" or self._sent.get("more_body"):
            await self._send({"type": "http.response.body", "body": b""})
