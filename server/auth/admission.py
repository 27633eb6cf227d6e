"""Decides which requests are accepted: at which addresses, for which names of the server, and with which tokens.

A loopback address needs nothing. Any other address needs authentication and a list of the names under which clients
reach the server; without both the server does not start. TLS needs a proxy; listen on loopback behind it if possible.
Requests for other names are refused (DNS rebinding, cross-site requests). While the server is open to all, a request
needs no token; otherwise it passes for as long as its token is valid.

`FailedTokenLimiter` slows down token guessing: after `FAILURES` refused tokens within `WINDOW_S` seconds, an address
must wait. The 256 random bits of a token prevent guessing; the limit keeps logs short and reveals nothing about a
guess. Every token is looked up first, so a valid one passes from a slowed address too: behind a proxy all clients share
an address. Memory is bounded: the oldest entry is dropped first.
"""

import asyncio
import logging
from collections import OrderedDict, deque

import anyio
import msgspec
from mcp.types import INTERNAL_ERROR
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.agent.ports.environment import Clock
from planwarden.server.auth.caller import TokenCheck
from planwarden.server.auth.settings import HttpSettings, is_loopback

WATCH_S = 5.0
"""Seconds between checks of a token, which may end while its request is still being answered."""
logger = logging.getLogger(__name__)
FAILURES, WINDOW_S = 20, 60.0
MAX_ADDRESSES = 4_096
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
METADATA = "/.well-known/"
"""The path below which public, read-only documents are; web pages of any origin may read them."""


class AdmissionMiddleware:
    """ASGI middleware that watches the tokens of requests to `path`; the SDK's middleware refuses requests without one.

    If a token ends during an answer, such as an open stream, the answer ends, but what the request started goes on.
    While the store fails, no token can be checked: the answer is 503, with a JSON-RPC error that has no id.
    """

    def __init__(self, app: ASGIApp, check: TokenCheck, path: str) -> None:
        self._app = app
        self._check = check
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            await self._let_in(scope, receive, answer)
        except StoreError as error:
            if answer.has_begun:
                raise
            logger.error("cannot check the token of a request: %s", error.message)
            failure = {"code": INTERNAL_ERROR, "message": f"{error.code}: the store failed; try again later"}
            await JSONResponse({"jsonrpc": "2.0", "id": None, "error": failure}, 503)(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        if await self._check.is_open():
            scope = {**scope, "headers": list(scope["headers"])}
            MutableHeaders(scope=scope)["authorization"] = f"Bearer {self._check.pass_key}"
        token = Headers(scope=scope).get("authorization", "").partition(" ")[2]
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
    """What has been sent so far of the answer to one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sent: Message | None = None

    @property
    def has_begun(self) -> bool:
        return self._sent is not None

    async def send(self, message: Message) -> None:
        self._sent = message
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive) -> None:
        if self._sent is None:
            document = {"error": "invalid_token", "error_description": "Authentication required"}
            await JSONResponse(document, 401, {"www-authenticate": "Bearer"})(scope, receive, self._send)
        elif self._sent["type"] == "http.response.start" or self._sent.get("more_body"):
            await self._send({"type": "http.response.body", "body": b""})


class FailedTokenLimiter:
    """ASGI middleware that slows down token guessing at `path`; other paths pass unchanged."""

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

    def _wait(self, address: str) -> float:
        """Return the seconds until the address may try again."""
        times = self._failures.get(address)
        if times is None or len(times) < FAILURES:
            return 0.0
        return times[0] + WINDOW_S - self._clock.now()

    def _learn(self, address: str) -> None:
        # Log at most `FAILURES` lines in `WINDOW_S` for an address, and never the token, which may be valid elsewhere.
        logger.warning("refused a bearer token from %s: unknown, expired, revoked, or not for this server", address)
        self._failures.setdefault(address, deque(maxlen=FAILURES)).append(self._clock.now())
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)


def _refuse(wait_s: float) -> JSONResponse:
    text = "too many refused tokens from this address"
    headers = {"retry-after": str(round(wait_s + 0.5))}
    return JSONResponse({"error": "rate_limited", "error_description": text}, 429, headers)


class AllowedNames(msgspec.Struct, frozen=True):
    """The `Host` and `Origin` values that name this server."""

    hosts: tuple[str, ...]
    origins: tuple[str, ...]

    @classmethod
    def from_settings(cls, settings: HttpSettings, host: str, port: int) -> "AllowedNames":
        own = [f"{name}:{port}" for name in dict.fromkeys(("127.0.0.1", "localhost", "[::1]", format_host(host)))]
        hosts, origins = [*own], [f"http://{name}" for name in own]
        for name in settings.names:
            has_port = ":" in name.rpartition("]")[2]
            both = (name,) if has_port else (name, f"{name}:{port}")
            hosts.extend(both)
            origins.extend(f"{scheme}://{address}" for address in both for scheme in ("https", "http"))
        # Clients leave out a default port.
        hosts.extend([name.removesuffix(default) for name in hosts for default in DEFAULT_PORTS.values()])
        origins.extend([origin.removesuffix(DEFAULT_PORTS[origin.partition(":")[0]]) for origin in origins])
        return cls(tuple(dict.fromkeys(hosts)), tuple(dict.fromkeys(origins)))


class AllowedNamesMiddleware:
    """The outermost ASGI middleware: answers 421 to a `Host`, and 403 to an `Origin`, that is not ours."""

    def __init__(self, app: ASGIApp, names: AllowedNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            hosts = [host.lower() for host in headers.getlist("host")]
            if len(hosts) != 1 or hosts[0] not in self._names.hosts:
                await PlainTextResponse("this is not a name of this server", 421)(scope, receive, send)
                return
            is_foreign = any(origin.lower() not in self._names.origins for origin in headers.getlist("origin"))
            if is_foreign and not str(scope["path"]).startswith(METADATA):
                await PlainTextResponse("requests from other sites are refused", 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def check_network(settings: HttpSettings, host: str, *, trusts_caller: bool, accepts_trust: bool) -> None:
    """Raise `UsageError` unless the server may listen on the host; `needs_token` looks at the tokens."""
    if is_loopback(host):
        return
    if not settings.names:
        raise UsageError(
            f"will not listen on {host!r}: everybody who can reach that address could use this server; it needs "
            "authentication (`planwarden token add NAME`, or [http] issuer) and [http] allowed_hosts in planwarden.toml"
        )
    if trusts_caller and not accepts_trust:
        raise UsageError(
            f"will not listen on {host!r} with [approvals] trust_caller: every caller there could approve its own "
            "actions; turn it off, or add --i-know-the-caller-can-approve-itself or "
            "[approvals] trust_caller_over_network"
        )


def needs_token(settings: HttpSettings, host: str, *, has_tokens: bool, may_use: bool) -> bool:
    """Return whether requests need a token. Revoked tokens count: revoking the last token does not open the server.

    Raises:
        UsageError: requests need a token, and nobody can have one.
    """
    has_issuer = settings.issuer is not None
    needs = settings.auth == "required" or has_issuer or has_tokens or not is_loopback(host)
    if needs and not (has_issuer or may_use):
        raise UsageError(
            f"will not listen on {host!r}: nobody could use it, because authentication is required and there is no "
            "valid token; make one with `planwarden token add NAME`, or set [http] issuer in planwarden.toml"
        )
    return needs


def format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
