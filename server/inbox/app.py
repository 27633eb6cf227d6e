"""The inbox as an ASGI application under `/inbox`, where a person reads a question and decides.

Pages work without JavaScript; the script only refreshes them and moves the focus. A GET request changes nothing. A
decision needs a session, a form that belongs to this session, and the digest of what the page showed.
"""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from planwarden.server.inbox.keys.page import build_key_routes
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.pages.changed_inputs import build_changed_inputs_routes
from planwarden.server.inbox.pages.execution import build_execution_routes
from planwarden.server.inbox.pages.grants import build_grant_routes
from planwarden.server.inbox.pages.keep import build_keep_routes
from planwarden.server.inbox.pages.pairing import build_pairing_routes
from planwarden.server.inbox.pages.plan_actions import build_plan_action_routes
from planwarden.server.inbox.pages.plan_list import build_plan_list_routes
from planwarden.server.inbox.pages.question import build_question_routes
from planwarden.server.inbox.pages.question_list import build_list_routes
from planwarden.server.inbox.pages.step_grants import build_step_grant_routes
from planwarden.server.inbox.request import NotFound, render_error_page
from planwarden.server.inbox.saved.list_page import build_saved_list_routes
from planwarden.server.inbox.saved.schedule_form import build_schedule_form_routes
from planwarden.server.inbox.saved.schedule_page import build_schedule_routes
from planwarden.server.inbox.saved.start_page import build_start_routes
from planwarden.server.inbox.security_middleware import Hosts, SecurityMiddleware
from planwarden.server.inbox.site import InboxSite, load_assets


def build_inbox_app(site: InboxSite, hosts: Hosts) -> Starlette:
    """The inbox of one home. It answers only requests with one of the given `Host` headers."""
    return Starlette(
        routes=[
            Route("/", _lead_to_inbox, methods=["GET"]),
            Route(f"{INBOX_PATH}/static/{{name}}", _serve_asset, methods=["GET"]),
            *build_pairing_routes(site),
            *build_question_routes(site),
            *build_list_routes(site),
            *build_plan_list_routes(site),
            *build_execution_routes(site),
            *build_plan_action_routes(site),
            *build_changed_inputs_routes(site),
            *build_keep_routes(site),
            *build_saved_list_routes(site),
            *build_start_routes(site),
            *build_schedule_form_routes(site),
            *build_schedule_routes(site),
            *build_grant_routes(site),
            *build_step_grant_routes(site),
            *build_key_routes(site),
        ],
        middleware=[Middleware(SecurityMiddleware, hosts=hosts, origin=site.origin)],
        exception_handlers={404: _serve_not_found, 405: _serve_not_found},
    )


async def _lead_to_inbox(request: Request) -> Response:
    return RedirectResponse(INBOX_PATH, status_code=303)


async def _serve_asset(request: Request) -> Response:
    asset = load_assets().get(request.path_params["name"])
    if asset is None:
        return render_error_page(NotFound())
    # A URL with the current version holds the hash of the content, so browsers may cache it without a limit.
    is_versioned = request.query_params.get("v") == asset.version
    caching = "public, max-age=31536000, immutable" if is_versioned else "no-cache"
    return Response(asset.content, media_type=asset.media_type, headers={"Cache-Control": caching})


async def _serve_not_found(request: Request, error: Exception) -> Response:
    return render_error_page(NotFound())
