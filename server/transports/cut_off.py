"""Requests that are cut off because the server ends get an answer, and leave no traceback in the log."""

import asyncio

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
