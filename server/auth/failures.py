"""Slows down guessing of tokens: after `FAILURES` refused tokens within `WINDOW_S` seconds an address must wait.

The 256 random bits of a token prevent guessing; this limit saves work and keeps logs short. Tokens that were accepted
before still work from a slowed address, because behind a proxy all clients share one address. Memory is bounded: the
oldest entry is dropped first.
"""

import hashlib
from collections import OrderedDict, deque

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planwarden.agent.ports.environment import Clock

FAILURES, WINDOW_S = 20, 60.0
MAX_ADDRESSES = 4_096
MAX_KNOWN = 4_096


class FailedTokenLimiter:
    """ASGI middleware for `path`, which needs a bearer token; other paths pass unchanged."""

    def __init__(self, app: ASGIApp, clock: Clock, path: str) -> None:
        self._app = app
        self._clock = clock
        self._path = path
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._accepted: OrderedDict[bytes, None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and scope["path"] == self._path
        given = Headers(scope=scope).get("authorization") if is_ours else None
        if given is None:
            await self._app(scope, receive, send)
            return
        address = str((scope.get("client") or ("", 0))[0])
        token = hashlib.sha256(given.encode("latin-1")).digest()
        wait_s = 0.0 if token in self._accepted else self._wait(address)
        if wait_s > 0:
            text = "too many refused tokens from this address"
            headers = {"retry-after": str(round(wait_s + 0.5))}
            response = JSONResponse({"error": "rate_limited", "error_description": text}, 429, headers)
            await response(scope, receive, send)
            return

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._learn(address, token, int(message["status"]))
            await send(message)

        await self._app(scope, receive, send_and_record)

    @property
    def size(self) -> int:
        """Entries in memory; at most `MAX_ADDRESSES + MAX_KNOWN`."""
        return len(self._failures) + len(self._accepted)

    def _wait(self, address: str) -> float:
        """Returns the seconds until the address may try again."""
        times = self._failures.get(address)
        if times is None or len(times) < FAILURES:
            return 0.0
        return times[0] + WINDOW_S - self._clock.now()

    def _learn(self, address: str, token: bytes, status: int) -> None:
        if status != 401:
            self._accepted[token] = None
            self._accepted.move_to_end(token)
            if len(self._accepted) > MAX_KNOWN:
                self._accepted.popitem(last=False)
            return
        self._accepted.pop(token, None)
        self._failures.setdefault(address, deque(maxlen=FAILURES)).append(self._clock.now())
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
