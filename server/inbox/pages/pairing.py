"""Coming in and going out: a code is exchanged for a session once, and a session can be ended.

A link only fills the form in; using the code up takes a POST, so a preview of the link or a browser that fetches ahead
does not spend it.
"""

import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.inbox.address import BASE
from planwarden.server.inbox.request import InboxRequest, answered, change, read_form, status_of
from planwarden.server.inbox.sessions import SESSION_S, PassphraseRefused
from planwarden.server.inbox.site import InboxSite, render

_INSIDE = re.compile(rf"{BASE}(/[A-Za-z0-9_-]{{1,128}}){{0,4}}/?")
"""Where a person may be sent after coming in: our own pages, nothing else."""


def pairing_routes(site: InboxSite) -> Sequence[BaseRoute]:
    async def pair(request: Request) -> Response:
        async def run() -> Response:
            return await (_used(site, request) if request.method == "POST" else _asked(site, request))

        return await answered(request, run)

    return (
        Route(f"{BASE}/pair", pair, methods=["GET", "POST"]),
        change(site, f"{BASE}/end", _end),
    )


async def _asked(site: InboxSite, request: Request) -> Response:
    """The form for the code. Whoever is in already goes on."""
    target = _inside(request.query_params.get("next", ""))
    if await site.access().session(request.cookies.get(site.cookie)) is not None:
        return RedirectResponse(target, status_code=303)
    code = request.query_params.get("code", "")[:256]
    return _form(site, code=code, target=target)


async def _used(site: InboxSite, request: Request) -> Response:
    given = {name: values[0] for name, values in (await read_form(request)).items()}
    code, target = given.get("code", ""), _inside(given.get("next", ""))
    try:
        opened = await site.access(pairing=True).redeem(code, given.get("passphrase", "")[:1_000])
    except PlanwardenError as error:
        # A code that was refused for another reason than the passphrase is of no further use.
        kept = code[:256] if isinstance(error, PassphraseRefused) else ""
        return _form(site, code=kept, target=target, fault=error.message, status=status_of(error))
    response = RedirectResponse(target, status_code=303)
    response.set_cookie(
        site.cookie,
        opened.token,
        max_age=int(SESSION_S),
        path=BASE,
        # Behind a proxy that has TLS the request itself does not say so.
        secure=f"https://{request.headers.get('host')}"
        in (site.origin, f"{request.url.scheme}://{request.url.netloc}"),
        httponly=True,
        samesite="strict",
    )
    return response


async def _end(visit: InboxRequest) -> Response:
    everywhere = visit.given("everywhere") == "yes"
    access = visit.site.access()
    if everywhere:
        await access.end_all(visit.session.principal)
    else:
        await access.end(visit.token, visit.session.principal)
    response = visit.to("/pair")
    response.delete_cookie(visit.site.cookie, path=BASE, httponly=True, samesite="strict")
    return response


def _form(site: InboxSite, *, code: str, target: str, fault: str = "", status: int = 200) -> Response:
    text = render(
        "pair.html",
        code=code,
        next=target,
        fault=fault,
        asks_passphrase=site.passphrase_file is not None,
    )
    return HTMLResponse(text, status_code=status)


def _inside(path: str) -> str:
    return path if _INSIDE.fullmatch(path) else BASE
