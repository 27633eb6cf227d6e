"""Middleware of the HTTP server: limits values per body and sessions per caller, and answers requests at shutdown.

The SDK limits only the sessions of all callers together, and an idle session lasts half an hour. Without a limit for
each caller, one token could use up all sessions and keep everybody else out. A session is closed with a DELETE request,
as its client would do (https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#session-management).
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from mcp.server.auth.middleware.auth_context import get_access_token
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planwarden.server.auth.caller import Caller, identify_bearer, identify_operator
from planwarden.server.mcp.frames import EDGE_BYTES, MAX_FRAME_BYTES, build_refusal, find_request_id
from planwarden.tools.downstream.value_counter import ValueCounter

MAX_SESSIONS = 100
"""The most sessions of one principal through one client."""
ENDING = "the server is shutting down; what it has accepted continues after a restart\n"
_SESSION = b"mcp-session-id"


class BoundedFramesMiddleware:
    """If a body has too many values, answers 413 and an error that has the request's id. The SDK limits the bytes."""

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
        """Return the next message; if the body has too many values, read it to its end and raise `_TooManyValues`."""
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


class CutOffMiddleware:
    """Answers 503 if uvicorn cancels a request that is still unanswered at the end of the shutdown period."""

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


@dataclass
class _Session:
    gate: object
    """The `gate` in the scope of the request that opened the session; None outside the gates."""
    requests: int = 0
    """The number of requests in flight."""


class SessionCapMiddleware:
    """Counts the sessions that requests to one path open and end, and limits the open sessions of each caller."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._path = path
        self._sessions: dict[Caller, OrderedDict[str, _Session]] = {}
        """For each caller: its sessions by id; the session used last is at the end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        session_id = _read_session(scope["headers"])

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, opened = message["status"], _read_session(message.get("headers", []))
                if session_id is None and status == 200 and opened is not None:
                    await self._make_room(scope, opened)
                elif scope["method"] == "DELETE" and 200 <= status < 300:
                    self._forget(session_id)
            await send(message)

        self._use(session_id, 1)
        try:
            await self._app(scope, receive, watch)
        finally:
            self._use(session_id, -1)

    def _use(self, session_id: str | None, count: int) -> None:
        for sessions in self._sessions.values():
            if session_id in sessions:
                sessions[session_id].requests += count
                sessions.move_to_end(session_id)
                return

    def _forget(self, session_id: str | None) -> None:
        for caller, sessions in list(self._sessions.items()):
            if session_id is not None and sessions.pop(session_id, None) is not None and not sessions:
                del self._sessions[caller]

    async def _make_room(self, scope: Scope, opened: str) -> None:
        """Count the new session. If there are too many, close the least recently used one, preferably an idle one."""
        caller = identify_operator() if get_access_token() is None else identify_bearer()
        sessions = self._sessions.setdefault(caller, OrderedDict())
        oldest = next((name for name, each in sessions.items() if not each.requests), next(iter(sessions), ""))
        sessions[opened] = _Session(scope.get("gate"))
        if len(sessions) > MAX_SESSIONS:
            end = _build_end(scope, oldest, sessions[oldest].gate)
            self._forget(oldest)
            await self._app(end, _receive_nothing, _send_nowhere)


def _read_session(headers: list[tuple[bytes, bytes]]) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == _SESSION), None)


def _build_end(scope: Scope, session_id: str, gate: object) -> Scope:
    """Return a request that ends the session at its gate; its headers are those of `scope`, a request of the same
    caller."""
    headers = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"content-type")]
    return {**scope, "gate": gate, "method": "DELETE", "headers": [*headers, (_SESSION, session_id.encode("latin-1"))]}


async def _receive_nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send_nowhere(message: Message) -> None:
    pass
