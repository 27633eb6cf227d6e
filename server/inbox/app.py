"""The inbox as an ASGI application under `/inbox`, where a person reads a question and decides.

Only signing keys and notifications need JavaScript; otherwise it just refreshes pages and makes them easier to use. A
GET request changes nothing. A decision needs a session, a form of this session, and the digest of what the page showed.

Before a page reads a request, a middleware refuses foreign `Host` headers (DNS rebinding), requests for pages in
frames, changes that another site started, and a `Content-Length` over the limit; Starlette limits the bodies. Sources:
the Fetch standard on `Origin` (https://fetch.spec.whatwg.org/#origin-header), Fetch Metadata
(https://www.w3.org/TR/fetch-metadata/), CSP 3 (https://www.w3.org/TR/CSP3/). `Referrer-Policy` is `same-origin` and not
`no-referrer`, because with `no-referrer` browsers send `Origin: null` with our own forms, which then look like foreign
ones. Other sites receive no referrer either way.
"""

from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planwarden.agent.common.errors import LimitExceeded
from planwarden.server.api.service import Service
from planwarden.server.inbox import signing_keys
from planwarden.server.inbox.inbox_port import INBOX_PATH, InboxSockets
from planwarden.server.inbox.pages import (
    execution,
    grants,
    keep,
    lists,
    pairing,
    plan_actions,
    question,
    saved_plan_forms,
    saved_plans,
)
from planwarden.server.inbox.request import NotFound, render_error_page
from planwarden.server.inbox.site import InboxSite, load_assets
from planwarden.server.inbox.web_server import HealthMiddleware, serve_app
from planwarden.server.settings.configuration import Settings

MAX_BODY_BYTES = 2 * 1024 * 1024
METHODS = ("GET", "HEAD", "POST")
FRAMES = frozenset({"iframe", "frame", "embed", "object", "fencedframe"})

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Hosts = Callable[[], Collection[str]]

_PAGES = (question, lists, execution, plan_actions, keep, saved_plans, saved_plan_forms, grants, signing_keys)


def build_inbox_app(site: InboxSite, hosts: Hosts) -> Starlette:
    """Return the inbox of one home. It answers only requests with one of the given `Host` headers."""
    return Starlette(
        routes=[
            Route("/", RedirectResponse(INBOX_PATH, status_code=303), methods=["GET"]),
            Route(f"{INBOX_PATH}/static/{{name}}", _serve_asset, methods=["GET"]),
            *pairing.build_pairing_routes(site),
            *(route for module in _PAGES for route in module.ROUTES.build(site)),
        ],
        middleware=[
            Middleware(SecurityMiddleware, hosts=hosts, origin=site.origin),
            Middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY_BYTES),
        ],
        exception_handlers={404: _serve_not_found, 405: _serve_not_found, 413: _refuse_body},
    )


async def serve_inbox(
    settings: Settings, service: Service, sockets: InboxSockets, on_activity: Callable[[], None] | None = None
) -> None:
    """Serve the inbox of one service on loopback sockets until cancelled."""
    site = InboxSite(service=lambda: service, settings=settings, on_activity=on_activity, origin=sockets.origin)
    app = HealthMiddleware(build_inbox_app(site, lambda: sockets.host_headers))
    await serve_app(app, *sockets.sockets)


async def _serve_asset(request: Request) -> Response:
    asset = load_assets().get(request.path_params["name"])
    if asset is None:
        return render_error_page(NotFound())
    # A URL with the current version has a hash of the content, so browsers may cache the content for a year.
    is_versioned = request.query_params.get("v") == asset.version
    caching = "public, max-age=31536000, immutable" if is_versioned else "no-cache"
    return Response(asset.content, media_type=asset.media_type, headers={"Cache-Control": caching})


async def _serve_not_found(request: Request, error: Exception) -> Response:
    return render_error_page(NotFound())


async def _refuse_body(request: Request, error: Exception) -> Response:
    return build_size_page()


class SecurityMiddleware:
    """Checks requests and adds headers to responses. `hosts` returns our `Host` headers, such as `127.0.0.1:8765`.

    `origin` is the origin that browsers see. Behind a TLS proxy it differs from the origin in the request.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts, origin: str | None = None) -> None:
        self._app = app
        self._hosts = hosts
        self._origin = origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._find_refusal(scope, headers)
        await (refusal or self._app)(scope, receive, _add_security_headers(send))

    def _find_refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if host not in self._hosts():
            return _build_text_response(421, "this inbox does not belong to that host")
        if scope["method"] not in METHODS:
            return _build_text_response(405, "only GET and POST", {"Allow": ", ".join(METHODS)})
        if headers.get("sec-fetch-dest") in FRAMES:
            return _build_text_response(403, "the inbox does not open inside another page")
        if scope["method"] == "POST" and not _is_same_origin(headers, self._own_origin(scope, host)):
            return _build_text_response(403, "the inbox accepts changes from its own pages only")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length[:12]) > MAX_BODY_BYTES:
            return build_size_page()
        return None

    def _own_origin(self, scope: Scope, host: str) -> str:
        if self._origin is not None and urlsplit(self._origin).netloc == host:
            return self._origin
        return f"{scope['scheme']}://{host}"


def _is_same_origin(headers: Headers, own_origin: str) -> bool:
    """Return False if another site sent the change. A client that names no site is not a browser and has no cookie."""
    origins, site = headers.getlist("origin"), headers.get("sec-fetch-site")
    return all(origin == own_origin for origin in origins) and site in (None, "same-origin", "none")


def _add_security_headers(send: Send) -> Send:
    async def add_security_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return add_security_headers


def build_size_page() -> Response:
    """Return the page for a form that is too large."""
    text = f"the form is larger than {MAX_BODY_BYTES} bytes; nothing was changed; go back, and send a smaller one"
    return render_error_page(LimitExceeded(text))


def _build_text_response(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status_code=status, headers=headers)
