"""Logging in and out: a one-time code opens a session, and a person can end the session.

Opening a link with the code only fills in the form; a POST redeems the code. So a preview or a prefetch of the link
does not use it up.
"""

import re
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.inbox.inbox_port import INBOX_PATH
from planwarden.server.inbox.request import InboxRequest, PageRoutes, http_status, read_form, run_with_error_page
from planwarden.server.inbox.sessions import SESSION_S, PassphraseRefused
from planwarden.server.inbox.site import InboxSite, render

_OWN_PAGE = re.compile(rf"{INBOX_PATH}(/[A-Za-z0-9_-]{{1,128}}){{0,4}}/?(\?[!-~]{{0,2000}})?")
"""The pages to which a login may redirect: only those of the inbox."""

_ROUTES = PageRoutes()


def build_pairing_routes(site: InboxSite) -> Sequence[BaseRoute]:
    async def pair(request: Request) -> Response:
        answer = _redeem_code if request.method == "POST" else _show_form
        return await run_with_error_page(request, partial(answer, site, request))

    return (Route(f"{INBOX_PATH}/pair", pair, methods=["GET", "POST"]), *_ROUTES.build(site))


async def _show_form(site: InboxSite, request: Request) -> Response:
    """Return the form for the code. Redirect a browser that has a session to the target at once."""
    target = _check_target(request.query_params.get("next", ""))
    if await site.access().find_session(request.cookies.get(site.cookie_name)) is not None:
        return RedirectResponse(target, status_code=303)
    code = request.query_params.get("code", "")[:256]
    return await _render_form(site, code=code, target=target)


async def _redeem_code(site: InboxSite, request: Request) -> Response:
    fields = {name: values[0] for name, values in (await read_form(request)).items()}
    code, target = fields.get("code", ""), _check_target(fields.get("next", ""))
    try:
        opened = await site.access(await site.passphrase.read()).redeem(code, fields.get("passphrase", "")[:1_000])
    except PlanwardenError as error:
        # Only a wrong passphrase leaves the code usable.
        usable_code = code[:256] if isinstance(error, PassphraseRefused) else ""
        return await _render_form(site, code=usable_code, target=target, fault=error.message, status=http_status(error))
    response = RedirectResponse(target, status_code=303)
    response.set_cookie(
        site.cookie_name,
        opened.token,
        max_age=int(SESSION_S),
        path=INBOX_PATH,
        # Behind a TLS proxy the request itself does not use https.
        secure=f"https://{request.headers.get('host')}"
        in (site.origin, f"{request.url.scheme}://{request.url.netloc}"),
        httponly=True,
        samesite="strict",
    )
    return response


@_ROUTES.form("/end")
async def _end_session(request: InboxRequest) -> Response:
    everywhere = request.form_value("everywhere") == "yes"
    access = request.site.access()
    if everywhere:
        await access.end_all_sessions(request.session.principal)
    else:
        await access.end_session(request.token, request.session.principal)
    response = request.redirect("/pair")
    response.delete_cookie(request.site.cookie_name, path=INBOX_PATH, httponly=True, samesite="strict")
    return response


async def _render_form(site: InboxSite, *, code: str, target: str, fault: str = "", status: int = 200) -> Response:
    text = render("pair.html", code=code, next=target, fault=fault, asks_passphrase=await site.passphrase.is_asked())
    return HTMLResponse(text, status_code=status)


def _check_target(path: str) -> str:
    return path if _OWN_PAGE.fullmatch(path) else INBOX_PATH
