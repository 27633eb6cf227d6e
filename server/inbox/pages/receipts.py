"""The page of what a host's session did, promised and proved."""

from starlette.responses import Response

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.guard.receipts import build_receipt, list_sessions
from planwarden.server.inbox.request import InboxRequest, PageRoutes
from planwarden.server.views.escaping import escape_text

MAX_SESSIONS = 50
ROUTES = PageRoutes()


@ROUTES.page("/receipts")
async def show_receipt(request: InboxRequest) -> Response:
    """Show the receipt of the session that the address names, or of the newest."""
    store, settings = request.service.store, request.site.settings
    try:
        receipt = await build_receipt(store, settings, request.query("session"))
    except InvalidArguments as error:
        return request.render_page("receipts.html", title=escape_text(error.message), lines=(), sessions=())
    sessions = [(each.session, escape_text(f"{each.host}, {each.folder}")) for each in await list_sessions(store)]
    return request.render_page(
        "receipts.html",
        title=escape_text(receipt.title),
        lines=[escape_text(line) for line in receipt.lines],
        sessions=sessions[:MAX_SESSIONS],
    )
