"""One request of a person who was let in: who it is, the fields of the form, and how to answer.

A page is only reached with a session, a change only with a form of this session. Whatever goes wrong on the way is a page
that says what happened; pages never change anything.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from planwarden.agent.common.errors import (
    AlreadyDecided,
    Expired,
    LimitExceeded,
    PlanwardenError,
    RateLimited,
    StaleDefinition,
    StaleRevision,
    StoreError,
    UnknownSuspension,
    UnknownThread,
    UsageError,
)
from planwarden.server.api.service import Service
from planwarden.server.inbox.address import BASE
from planwarden.server.inbox.sessions import csrf_token
from planwarden.server.inbox.site import InboxSite, render
from planwarden.storage.ports.sessions import InboxSession

logger = logging.getLogger(__name__)

MAX_FORM_FIELDS = 2_000
FORM = "application/x-www-form-urlencoded"

_STATUS: dict[type[PlanwardenError], int] = {
    UnknownSuspension: 404,
    UnknownThread: 404,
    AlreadyDecided: 409,
    Expired: 409,
    StaleRevision: 409,
    StaleDefinition: 409,
    LimitExceeded: 413,
    RateLimited: 429,
    StoreError: 503,
    UsageError: 422,
}


class Forbidden(UsageError):
    """The form does not belong to this session; go back, load the page again, and send it once more."""

    code = "forbidden"


class BadForm(UsageError):
    """The form is not one that this page sends."""

    code = "bad_form"


class NotFound(UsageError):
    """There is no such page, or it is gone."""

    code = "not_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRequest:
    """One request with its session."""

    site: InboxSite
    request: Request
    session: InboxSession
    token: str
    form: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def service(self) -> Service:
        return self.site.service()

    @property
    def is_fragment(self) -> bool:
        """Asked for by the page's own script, to replace a part of it."""
        return self.request.headers.get("hx-request") == "true"

    @property
    def wants_json(self) -> bool:
        """Asked by the page's own script, for something to hand to the browser."""
        return self.request.headers.get("accept") == "application/json"

    def given(self, name: str) -> str:
        """The one value of a form's field; empty when it was not sent. Raises `BadForm` for several."""
        values = self.form.get(name, ())
        if len(values) > 1:
            raise BadForm
        return values[0] if values else ""

    def fields(self) -> dict[str, str]:
        """Every field that was sent once."""
        return {name: values[0] for name, values in self.form.items() if len(values) == 1}

    def page(self, template: str, /, *, status: int = 200, **values: object) -> Response:
        """A page for this person."""
        text = render(template, csrf=csrf_token(self.token), principal=self.session.principal, **values)
        return HTMLResponse(text, status_code=status)

    def to(self, path: str) -> Response:
        """Look at something else now."""
        return RedirectResponse(f"{BASE}{path}", status_code=303)


Handler = Callable[[InboxRequest], Awaitable[Response]]


def page(site: InboxSite, path: str, handler: Handler, *, name: str | None = None) -> Route:
    """A route that only shows."""

    async def endpoint(request: Request) -> Response:
        async def run() -> Response:
            visit = await _inbox_request(site, request)
            return await handler(visit) if visit is not None else _to_pairing(request)

        return await answered(request, run)

    return Route(path, endpoint, methods=["GET"], name=name)


def change(site: InboxSite, path: str, handler: Handler) -> Route:
    """A route that changes something; looking at it is refused."""

    async def endpoint(request: Request) -> Response:
        async def run() -> Response:
            if request.method != "POST":
                raise Forbidden("looking at a page changes nothing; decide with the buttons on the question's own page")
            form = await read_form(request)
            visit = await _inbox_request(site, request, form)
            if visit is None:
                raise Forbidden("this browser is not let in, or its session has ended; nothing was changed")
            if not compare_digest(visit.given("csrf").encode(), csrf_token(visit.token).encode()):
                raise Forbidden
            return await handler(visit)

        return await answered(request, run)

    return Route(path, endpoint, methods=["GET", "POST"])


async def answered(request: Request, run: Callable[[], Awaitable[Response]]) -> Response:
    """The response, or a page that says what went wrong."""
    try:
        return await run()
    except PlanwardenError as error:
        return error_page(error)
    # The outermost place of a request: the person learns that it failed, the log learns why.
    except Exception:
        logger.exception("the inbox stumbled over %s", request.url.path)
        return error_page(PlanwardenError("something went wrong inside planwarden; its log says what"))


def error_page(error: PlanwardenError) -> Response:
    """The page of an error."""
    status = status_of(error)
    return HTMLResponse(render("trouble.html", status=status, message=error.message), status_code=status)


def status_of(error: PlanwardenError) -> int:
    if isinstance(error, Forbidden):
        return 403
    if isinstance(error, NotFound):
        return 404
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)


async def read_form(request: Request) -> dict[str, tuple[str, ...]]:
    """The fields of an urlencoded body. Raises `BadForm` for anything else."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise BadForm(f"the body is not {FORM}")
    try:
        text = (await request.body()).decode("ascii")
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=MAX_FORM_FIELDS
        )
    except ValueError:
        raise BadForm from None
    found: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        found[name] = (*found.get(name, ()), value)
    return found


async def _inbox_request(
    site: InboxSite, request: Request, form: Mapping[str, tuple[str, ...]] | None = None
) -> InboxRequest | None:
    """None when the browser has no open session."""
    token = request.cookies.get(site.cookie)
    session = await site.access().session(token)
    if session is None or token is None:
        return None
    if site.visited is not None:
        site.visited()
    return InboxRequest(site=site, request=request, session=session, token=token, form=form or {})


def _to_pairing(request: Request) -> Response:
    """Ask for a code, unless the cookie may only have been held back.

    Browsers send a strict cookie with nothing that another site started, a click on a link in a chat included. A page of
    ours that loads itself again is not another site (https://www.rfc-editor.org/rfc/rfc6265#section-5.3 and its successor).
    """
    if request.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={"HX-Redirect": f"{BASE}/pair"})
    if request.headers.get("sec-fetch-site") == "cross-site":
        return HTMLResponse(render("again.html", url=request.url.path))
    return RedirectResponse(f"{BASE}/pair?next={quote(request.url.path, safe='')}", status_code=303)
