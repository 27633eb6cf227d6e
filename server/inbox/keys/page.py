"""The page of a person's signing keys: it lists, adds and removes them."""

from starlette.responses import JSONResponse, Response

from planwarden.agent.common.errors import UsageError
from planwarden.server.inbox.browser import INBOX_PATH
from planwarden.server.inbox.keys.signing import find_obstacle, find_relying_party
from planwarden.server.inbox.request import InboxRequest, PageRoutes
from planwarden.server.signatures.keyring import MAX_LABEL_CHARS, Keyring
from planwarden.server.views.escaping import escape_text

KEYS_PATH = f"{INBOX_PATH}/keys"
MAX_REMOVED = 50
"""Removed keys on the page, the newest."""


ROUTES = PageRoutes()


@ROUTES.page("/keys")
async def show_keys(request: InboxRequest) -> Response:
    return await _render_keys(request)


@ROUTES.form("/keys/add")
async def add_key(request: InboxRequest) -> Response:
    """Return a challenge to the script; add the key when the form holds the credential."""
    keyring, relying_party = _open_keyring(request), find_relying_party(request)
    try:
        if relying_party is None:
            raise UsageError("browsers cannot use keys at this address")
        if request.wants_json:
            return JSONResponse(await keyring.request_key(request.session, relying_party))
        if not request.form_value("credential"):
            raise UsageError("adding a key needs JavaScript, which did not run in this browser")
        await keyring.add_key(
            request.session,
            relying_party,
            nonce=request.form_value("nonce"),
            label=request.form_value("label"),
            credential=request.form_value("credential"),
            text=request.form_value("signature"),
        )
    except UsageError as error:
        if request.wants_json:
            return JSONResponse({"message": error.message}, status_code=422)
        return await _render_keys(request, fault=error.message)
    return request.redirect("/keys")


@ROUTES.form("/keys/{key_id}/remove")
async def remove_key(request: InboxRequest) -> Response:
    try:
        await _open_keyring(request).remove_own_key(request.session, request.path("key_id"))
    except UsageError as error:
        return await _render_keys(request, fault=error.message)
    return request.redirect("/keys")


async def _render_keys(request: InboxRequest, fault: str = "") -> Response:
    keys = [key for key in await _open_keyring(request).list_keys() if key.principal == request.session.principal]
    removed = [key for key in keys if key.revoked_at is not None]
    return request.render_page(
        "keys.html",
        status=422 if fault else 200,
        fault=escape_text(fault),
        usable=[key for key in keys if key.revoked_at is None],
        over=removed[: -MAX_REMOVED - 1 : -1],
        more_over=max(0, len(removed) - MAX_REMOVED),
        obstacle=find_obstacle(request, KEYS_PATH),
        max_label=MAX_LABEL_CHARS,
    )


def _open_keyring(request: InboxRequest) -> Keyring:
    return Keyring(request.service.store)
