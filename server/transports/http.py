"""MCP over Streamable HTTP at `/mcp` (both eras of the protocol), the inbox at `/inbox`, hooks below `/hooks/`, and the
servers of planwarden.json below `/gate/`.

On a loopback address without tokens, everybody who can open a local connection acts as the operator's assistant, but
cannot approve as a person. Any other address needs tokens and a list of names. Requests must name this server in `Host`
and, if a browser sends it, in `Origin`, so that no web page can reach the server by rebinding its own name
(https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#security-warning). A proxy must add TLS.
`X-Forwarded-*` headers are not read; `[http] public_url` takes their place.
"""

import logging
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, nullcontext, suppress
from types import FrameType

import anyio
import h11
import httpx2
import uvicorn
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.routes import build_resource_metadata_url
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from planwarden.agent.common.errors import PlanwardenError, UsageError
from planwarden.agent.ports.environment import Clock, new_id
from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.auth.admission import (
    AdmissionMiddleware,
    AllowedNames,
    AllowedNamesMiddleware,
    FailedTokenLimiter,
    check_network,
    format_host,
    needs_token,
)
from planwarden.server.auth.caller import TokenCheck
from planwarden.server.auth.oauth import IssuerCheck
from planwarden.server.guard.guard import answering_hooks
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.inbox_port import INBOX_PATH, pair_socket
from planwarden.server.inbox.site import InboxSite
from planwarden.server.inbox.web_server import HealthMiddleware, until_cancelled
from planwarden.server.mcp.frames import MAX_FRAME_BYTES
from planwarden.server.mcp.server import BearerAuth, PlanwardenServer
from planwarden.server.settings.configuration import ProcessRole, Settings
from planwarden.server.settings.secrets import find_request_state_key, find_secrets
from planwarden.server.telemetry.logs import log_to_stderr
from planwarden.server.transports.hooks import HOOKS_PATH, HookEndpoint
from planwarden.server.transports.middleware import BoundedFramesMiddleware, CutOffMiddleware, SessionCapMiddleware
from planwarden.storage.sessions import RunningInboxes
from planwarden.storage.tokens import TokenStore

PATH = "/mcp"
GATE_PATH = "/gate"
MAX_BODY_BYTES = MAX_FRAME_BYTES
CLOSING_S = 2
"""The most seconds that open requests may last when the server stops."""


async def serve_http(
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    accepts_trust: bool = False,
    role: ProcessRole = "both",
    started: Callable[[str], None] | None = None,
    serve_gates: Callable[[Warden], AbstractAsyncContextManager[ASGIApp]] | None = None,
) -> None:
    """Serve until interrupted or cancelled. `port` 0 takes a free port; `started` is called with the address.
    `serve_gates` opens the application that answers below `/gate/`.

    Raises:
        UsageError: the server may not listen on `host`, the port is taken, or a setting is not usable.
        StoreError: the store cannot be opened.
    """
    accepts = accepts_trust or settings.tables.approvals.trust_caller_over_network
    check_network(settings.http, host, trusts_caller=settings.policy.trust_caller, accepts_trust=accepts)
    if not settings.store.is_made:
        # Before the store creates a database, refuse an address that needs tokens.
        needs_token(settings.http, host, has_tokens=False, may_use=False)
    log_to_stderr(settings.observation)
    logging.getLogger("uvicorn.error").addFilter(_drop_disconnects)
    warden = Warden(settings=settings, whole_process=True, role=role)
    with closing(pair_socket(_bind_socket(host, port))) as listening:
        bound_port = listening.port
        origin = settings.http.public_url or listening.origin
        async with (
            warden,
            _open_authentication(warden, host, bound_port) as (auth, check),
            _announce_inbox(warden.service, f"{origin or f'http://{format_host(host)}:{bound_port}'}{INBOX_PATH}"),
            answering_hooks(settings, warden.service),
            nullcontext() if serve_gates is None else serve_gates(warden) as gates,
        ):
            names = AllowedNames.from_settings(settings.http, host, bound_port)
            store = warden.service.store
            key = await find_request_state_key(settings, find_secrets(settings, store))
            # The service is open already.
            server = PlanwardenServer(lambda: nullcontext(warden.service), key, warden=warden, auth=auth)
            app = build_http_app(server, names, clock=store.clock, check=check)
            site = InboxSite(service=lambda: warden.service, settings=settings, origin=origin)
            if started is not None:
                started(f"http://{format_host(host)}:{bound_port}{PATH}")
            hooks = AllowedNamesMiddleware(HookEndpoint(settings.hooks, lambda: warden.service), names)
            inbox = build_inbox_app(site, lambda: names.hosts)
            guarded_gates = None if gates is None else _protect(gates, auth, check, names, store.clock)
            await _serve(_mount(app, inbox, hooks, guarded_gates), listening.sockets, server.end_streams)


def _drop_disconnects(record: logging.LogRecord) -> bool:
    """Return False for records of connections that broke off during a request: otherwise anybody could fill the log.

    If a body is not HTTP, uvicorn answers 400 before the application does, and the application's answer then fails.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], ClientDisconnect | h11.LocalProtocolError))


def build_http_app(
    server: PlanwardenServer, names: AllowedNames, *, clock: Clock, check: TokenCheck | None = None
) -> Starlette:
    """Return the server as an ASGI application that answers only under its own names and, with `check`, only to callers
    that the check admits."""
    logging.getLogger("mcp.server.streamable_http").addFilter(_drop_disconnects)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=list(names.hosts), allowed_origins=list(names.origins)
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, max_request_body_size=MAX_BODY_BYTES, transport_security=security
    )
    app.add_middleware(SessionCapMiddleware, path=PATH)
    app.add_middleware(BoundedFramesMiddleware, path=PATH)
    # The middleware that is added last sees a request first.
    if check is not None:
        app.add_middleware(AdmissionMiddleware, check=check, path=PATH)
    app.add_middleware(FailedTokenLimiter, clock=clock, path=PATH)
    app.add_middleware(AllowedNamesMiddleware, names=names)
    return app


@asynccontextmanager
async def _open_authentication(warden: Warden, host: str, port: int) -> AsyncGenerator[tuple[BearerAuth, TokenCheck]]:
    """Yield the authentication of requests, and the check of their tokens.

    Raises:
        UsageError: requests need a token, and no usable token exists.
    """
    settings, store = warden.settings.http, warden.service.store
    tokens = TokenStore(store)
    rows = await tokens.all()
    usable = any(row.role == "caller" and row.is_valid(store.clock.now()) for row in rows)
    is_open = not needs_token(settings, host, has_tokens=bool(rows), may_use=usable)
    resource = issuer = None
    async with AsyncExitStack() as stack:
        if settings.issuer is not None:
            resource = f"{settings.public_url or f'http://{format_host(host)}:{port}'}{PATH}"
            client = await stack.enter_async_context(httpx2.AsyncClient(timeout=10.0))
            issuer = IssuerCheck(settings, settings.audience or resource, store.clock, client)
        check = TokenCheck(tokens, store.clock, is_open=is_open, scopes=settings.required_scopes, others=issuer)
        auth = AuthSettings.model_validate(
            {
                # Texts, because an `AnyHttpUrl` would get a slash, and clients compare issuers as texts (RFC 8414).
                "issuer_url": settings.issuer or "http://127.0.0.1",
                # The SDK publishes this URL as protected-resource metadata (RFC 9728), which only an issuer needs.
                "resource_server_url": resource,
                "required_scopes": [*settings.required_scopes],
                # The verifier checks the audience itself.
                "validate_token_resource": False,
            }
        )
        yield BearerAuth(auth, check), check


@asynccontextmanager
async def _announce_inbox(service: Service, url: str) -> AsyncGenerator[None]:
    """Let `planwarden inbox` find the inbox at `url` until the block ends."""
    inboxes, owner = RunningInboxes(service.store), new_id()
    await inboxes.open(owner, url)
    service.inbox_url = url
    try:
        yield
    finally:
        service.inbox_url = None
        # This raises if the store is closed. The entry has then ended already, as its owner no longer counts as alive.
        with anyio.CancelScope(shield=True), suppress(PlanwardenError):
            await inboxes.close(owner)


def _protect(gates: ASGIApp, auth: BearerAuth, check: TokenCheck, names: AllowedNames, clock: Clock) -> ASGIApp:
    """Return the gates behind the same limits and token checks as `/mcp`."""
    resource = auth.settings.resource_server_url
    metadata = None if resource is None else build_resource_metadata_url(resource)
    app: ASGIApp = RequireAuthMiddleware(gates, auth.settings.required_scopes or [], metadata)
    app = AuthContextMiddleware(RequestBodyLimitMiddleware(app, MAX_BODY_BYTES))
    app = AuthenticationMiddleware(app, backend=BearerAuthBackend(auth.verifier))
    app = BoundedFramesMiddleware(SessionCapMiddleware(app, path=GATE_PATH), path=GATE_PATH)
    app = AdmissionMiddleware(app, check=check, path=GATE_PATH)
    return AllowedNamesMiddleware(FailedTokenLimiter(app, clock=clock, path=GATE_PATH), names=names)


def _mount(app: ASGIApp, inbox: ASGIApp, hooks: ASGIApp, gates: ASGIApp | None) -> ASGIApp:
    """Return `app` with the inbox (also at `/`), the hooks and the gates under their own paths.

    A gate finds its name in the scope, under `gate`. All other requests go to `app`, and so do lifespan events.
    """

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"]) if scope["type"] == "http" else ""
        target = app
        if path in ("/", INBOX_PATH) or path.startswith(f"{INBOX_PATH}/"):
            target = inbox
        elif path.startswith(HOOKS_PATH):
            target = hooks
        elif gates is not None and path.startswith(f"{GATE_PATH}/"):
            target, scope = gates, {**scope, "path": GATE_PATH, "gate": path.removeprefix(f"{GATE_PATH}/")}
        await target(scope, receive, send)

    return dispatch


class _HttpServer(uvicorn.Server):
    """Ends open streams when it stops: uvicorn waits for them, and subscriptions do not end by themselves."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop on SIGINT and SIGTERM. uvicorn would raise SIGTERM again when it has stopped, which would end the
        process before running calls are recorded and executions released."""
        if sig == signal.SIGTERM:
            self.should_exit = True
        else:
            super().handle_exit(sig, frame)


async def _serve(app: ASGIApp, sockets: Sequence[socket.socket], end_streams: Callable[[], None]) -> None:
    """Serve until cancelled or stopped by a signal."""
    config = uvicorn.Config(
        CutOffMiddleware(HealthMiddleware(app)),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=CLOSING_S,
        # Otherwise uvicorn trusts X-Forwarded-For and -Proto from clients on this machine.
        proxy_headers=False,
        server_header=False,
    )
    await until_cancelled(_HttpServer(config, end_streams), sockets)


def _bind_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        # Python appends its own words to the system's message.
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise UsageError(f"cannot listen on {host}:{port}: {reason}; choose another --host or --port") from error
