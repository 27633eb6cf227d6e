"""The inbox as an ASGI application under `/inbox`, where a person reads a question and decides.

Only signing keys and notifications need JavaScript; otherwise it just refreshes pages and makes them easier to use. A
GET request changes nothing. A decision needs a session, a form of this session, and the digest of what the page showed.
"""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from planwarden.server.api.service import Service
from planwarden.server.inbox import signing_keys
from planwarden.server.inbox.browser import INBOX_PATH
from planwarden.server.inbox.inbox_port import InboxSockets
from planwarden.server.inbox.pages import (
    execution,
    grants,
    keep,
    pairing,
    plan_actions,
    plan_list,
    question,
    question_list,
)
from planwarden.server.inbox.request import NotFound, render_error_page
from planwarden.server.inbox.saved import list_page, schedule_form, schedule_page, start_page
from planwarden.server.inbox.security_middleware import MAX_BODY_BYTES, Hosts, SecurityMiddleware, build_size_page
from planwarden.server.inbox.site import InboxSite, load_assets
from planwarden.server.inbox.web_server import HealthMiddleware, serve_app
from planwarden.server.settings.configuration import Settings

_PAGES = (
    question,
    question_list,
    plan_list,
    execution,
    plan_actions,
    keep,
    list_page,
    start_page,
    schedule_form,
    schedule_page,
    grants,
    signing_keys,
)


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
