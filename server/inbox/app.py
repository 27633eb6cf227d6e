"""The inbox as an ASGI application under `/inbox`: where a person reads a question and decides.

Pages work without script; the script only refreshes them and moves the focus. Looking never changes anything, and
nothing is decided without a session, a form of that session, and the digest of what was shown.
"""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from planwarden.server.inbox.address import BASE
from planwarden.server.inbox.keys.page import key_routes
from planwarden.server.inbox.pages.execution import execution_routes
from planwarden.server.inbox.pages.grants import grant_routes
from planwarden.server.inbox.pages.lists import list_routes
from planwarden.server.inbox.pages.pairing import pairing_routes
from planwarden.server.inbox.pages.question import question_routes
from planwarden.server.inbox.request import NotFound, error_page
from planwarden.server.inbox.security import Hosts, InboxSecurity
from planwarden.server.inbox.site import InboxSite, assets


def inbox_app(site: InboxSite, hosts: Hosts) -> Starlette:
    """The inbox of one home; it answers only to the given `Host` headers."""
    return Starlette(
        routes=[
            Route(f"{BASE}/static/{{name}}", _asset, methods=["GET"]),
            *pairing_routes(site),
            *question_routes(site),
            *list_routes(site),
            *execution_routes(site),
            *grant_routes(site),
            *key_routes(site),
        ],
        middleware=[Middleware(InboxSecurity, hosts=hosts, origin=site.origin)],
        exception_handlers={404: _missing, 405: _missing},
    )


async def _asset(request: Request) -> Response:
    found = assets().get(request.path_params["name"])
    if found is None:
        return error_page(NotFound())
    # The address holds the hash of the content, so it may be kept for as long as anybody likes.
    is_named = request.query_params.get("v") == found.version
    caching = "public, max-age=31536000, immutable" if is_named else "no-cache"
    return Response(found.content, media_type=found.media, headers={"Cache-Control": caching})


async def _missing(request: Request, error: Exception) -> Response:
    return error_page(NotFound())
