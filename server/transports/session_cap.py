"""How many sessions of the older protocol each caller keeps open: one that opens more closes its own oldest idle one.

The SDK bounds the sessions of all callers together, and an idle one ends after half an hour. So without this bound, one
token would keep everybody else out. A session is closed as its client would, by DELETE
(https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#session-management).
"""

from collections import OrderedDict

from mcp.server.auth.middleware.auth_context import get_access_token
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planwarden.server.auth.caller import Caller, identify_bearer, identify_operator

MAX_SESSIONS = 100
"""Of one principal through one client."""
_SESSION = b"mcp-session-id"


class SessionCapMiddleware:
    """Counts the sessions that requests to one path open and end."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._path = path
        self._sessions: dict[Caller, OrderedDict[str, int]] = {}
        """By caller, the requests in flight of each session, the one that was used last at the end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        session_id = _read_session(scope["headers"])
        if session_id is None:
            await self._app(scope, receive, self._watch_opening(scope, send))
            return
        self._use(session_id, 1)
        try:
            await self._app(scope, receive, self._watch_end(session_id, scope["method"], send))
        finally:
            self._use(session_id, -1)

    def _watch_opening(self, scope: Scope, send: Send) -> Send:
        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                opened = _read_session(message["headers"])
                if opened is not None:
                    await self._make_room(scope, opened)
            await send(message)

        return watch

    def _watch_end(self, session_id: str, method: str, send: Send) -> Send:
        async def watch(message: Message) -> None:
            status = message.get("status", 0) if message["type"] == "http.response.start" else 0
            # The SDK does not know it any more, or its client has ended it.
            if status == 404 or (method == "DELETE" and 200 <= status < 300):
                self._forget(session_id)
            await send(message)

        return watch

    def _use(self, session_id: str, count: int) -> None:
        for sessions in self._sessions.values():
            if session_id in sessions:
                sessions[session_id] += count
                sessions.move_to_end(session_id)
                return

    def _forget(self, session_id: str) -> None:
        for caller, sessions in list(self._sessions.items()):
            if sessions.pop(session_id, None) is not None and not sessions:
                del self._sessions[caller]

    async def _make_room(self, scope: Scope, opened: str) -> None:
        """Count the new session, and close the caller's oldest idle one if that is one too many."""
        caller = identify_operator() if get_access_token() is None else identify_bearer()
        sessions = self._sessions.setdefault(caller, OrderedDict())
        sessions[opened] = 0
        if len(sessions) > MAX_SESSIONS:
            oldest = next((name for name, requests in sessions.items() if not requests), next(iter(sessions)))
            self._forget(oldest)
            await self._app(_build_end(scope, oldest), _receive_nothing, _send_nowhere)


def _read_session(headers: list[tuple[bytes, bytes]]) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == _SESSION), None)


def _build_end(scope: Scope, session_id: str) -> Scope:
    """Return the request of the same client that ends one of its sessions."""
    headers = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"content-type")]
    return {**scope, "method": "DELETE", "headers": [*headers, (_SESSION, session_id.encode("latin-1"))]}


async def _receive_nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send_nowhere(message: Message) -> None:
    pass
