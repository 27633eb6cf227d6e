"""Slows down guessing of tokens: after `FAILURES` refused tokens within `WINDOW_S` seconds an address must wait.

The 256 random bits of a token prevent guessing; this limit keeps logs short and says nothing about a guess. Every token
is looked up first, so a right one passes from a slowed address too: behind a proxy all clients share one. Memory is
bounded: the oldest entry is dropped first.
"""

import logging
from collections import OrderedDict, deque

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planwarden.agent.ports.environment import Clock

logger = logging.getLogger(__name__)

FAILURES, WINDOW_S = 20, 60.0
MAX_ADDRESSES = 4_096


class FailedTokenLimiter:
    """ASGI middleware for `path`, which needs a bearer token; other paths pass unchanged."""

    def __init__(self, app: ASGIApp, clock: Clock, path: str) -> None:
        self._app = app
        self._clock = clock
        self._path = path
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and scope["path"] == self._path
        if not is_ours or "authorization" not in Headers(scope=scope):
            await self._app(scope, receive, send)
            return
        address = str((scope.get("client") or ("", 0))[0])
        is_slowed = False

        async def send_or_slow_down(message: Message) -> None:
            nonlocal is_slowed
            if message["type"] == "http.response.start" and message["status"] == 401:
                wait_s = self._wait(address)
                is_slowed = wait_s > 0
                if is_slowed:
                    await _refuse(wait_s)(scope, receive, send)
                else:
                    self._learn(address)
            if not is_slowed:
                await send(message)

        await self._app(scope, receive, send_or_slow_down)

    @property
    def size(self) -> int:
        """Entries in memory; at most `MAX_ADDRESSES`."""
        return len(self._failures)

    def _wait(self, address: str) -> float:
        """Return the seconds until the address may try again."""
        times = self._failures.get(address)
        if times is None or len(times) < FAILURES:
            return 0.0
        return times[0] + WINDOW_S - self._clock.now()

    def _learn(self, address: str) -> None:
        # At most `FAILURES` lines in `WINDOW_S` for an address; never the token, which may be right somewhere else.
        logger.warning("refused a bearer token from %s: unknown, expired, revoked, or not for this server", address)
        self._failures.setdefault(address, deque(maxlen=FAILURES)).append(self._clock.now())
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)


def _refuse(wait_s: float) -> JSONResponse:
    text = "too many refused tokens from this address"
    headers = {"retry-after": str(round(wait_s + 0.5))}
    return JSONResponse({"error": "rate_limited", "error_description": text}, 429, headers)
