"""The inbox as an ASGI application under `/inbox`: where a person reads a question and decides.

Pages work without script; the script only refreshes them and moves the focus. Looking never changes anything, and
nothing is decided without a session, a form of that session, and the digest of what was shown.
"""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from planwarden.server.inbox.keys.page import build_key_routes
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.pages.execution import build_execution_routes
from planwarden.server.inbox.pages.grants import build_grant_routes
from planwarden.server.inbox.pages.pairing import build_pairing_routes
from planwarden.server.inbox.pages.question import build_question_routes
from planwarden.server.inbox.pages.question_list import build_list_routes
from planwarden.server.inbox.request import NotFound, render_error_page
from planwarden.server.inbox.security_middleware import Hosts, SecurityMiddleware
from planwarden.server.inbox.site import InboxSite, load_assets


def build_inbox_app(site: InboxSite, hosts: Hosts) -> Starlette:
    """The inbox of one home; it answers only to the given `Host` headers."""
    return Starlette(
        routes=[
            Route(f"{INBOX_PATH}/static/{{name}}", _serve_asset, methods=["GET"]),
            *build_pairing_routes(site),
            *build_question_routes(site),
            *build_list_routes(site),
            *build_execution_routes(site),
            *build_grant_routes(site),
            *build_key_routes(site),
        ],
        middleware=[Middleware(SecurityMiddleware, hosts=hosts, origin=site.origin)],
        exception_handlers={404: _serve_not_found, 405: _serve_not_found},
    )


async def _serve_asset(request: Request) -> Response:
    found = load_assets().get(request.path_params["name"])
    if found is None:
        return render_error_page(NotFound())
    # The address holds the hash of the content, so it may be kept for as long as anybody likes.
    is_named = request.query_params.get("v") == found.version
    caching = "public, max-age=31536000, immutable" if is_named else "no-cache"
    return Response(found.content, media_type=found.media, headers={"Cache-Control": caching})


async def _serve_not_found(request: Request, error: Exception) -> Response:
    return render_error_page(NotFound())
