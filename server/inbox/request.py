"""One request of a person with a session: who the person is, the fields of the form, and how to respond.

A page needs a session. A change also needs a form that belongs to this session. Every error becomes a page that says
what happened.
"""

import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hmac import compare_digest
from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
from pydantic import JsonValue
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import (
    AlreadyDecided,
    DuplicateEffect,
    Expired,
    LimitExceeded,
    PlanChanged,
    PlanwardenError,
    RateLimited,
    StaleDefinition,
    StaleRevision,
    StoreError,
    UnknownPlan,
    UnknownSchedule,
    UnknownSuspension,
    UnknownThread,
    UsageError,
)
from planwarden.agent.ports.environment import new_id
from planwarden.server.api.service import Service
from planwarden.server.inbox.inbox_port import INBOX_PATH
from planwarden.server.inbox.sessions import derive_csrf_token
from planwarden.server.inbox.site import InboxSite, render
from planwarden.server.views.escaping import capitalize, escape_text
from planwarden.storage.sessions import InboxSession

logger = logging.getLogger(__name__)

MAX_FORM_FIELDS = 2_000
FORM = "application/x-www-form-urlencoded"


class Forbidden(UsageError):
    """The form does not belong to this session; go back, reload the page, and send the form again."""

    code = "forbidden"


class BadForm(UsageError):
    """This page does not send a form like this one; reload the page and try again."""

    code = "bad_form"


class NotFound(UsageError):
    """There is no such page, or it no longer exists."""

    code = "not_found"


CONFIRMING = ("approve", "keep")
"""The values of the buttons that act on a draft."""
_KEY = re.compile(r"[A-Za-z0-9_-]{8,64}")
_OWN_FIELDS = frozenset({"csrf", "decision", "key"})
Values = dict[str, Any]
"""What a template shows, by name."""


class Remark(msgspec.Struct, frozen=True):
    """A sentence above the content of a page, and the HTTP status of that page."""

    text: str
    status: int = 200
    tone: str = "warn"


_ERRORS: dict[int, tuple[type[PlanwardenError], ...]] = {
    403: (Forbidden,),
    404: (NotFound, UnknownSuspension, UnknownThread, UnknownPlan, UnknownSchedule),
    409: (PlanChanged, AlreadyDecided, DuplicateEffect, Expired, StaleRevision, StaleDefinition),
    413: (LimitExceeded,),
    429: (RateLimited,),
    503: (StoreError,),
    422: (UsageError,),
}
"""The classes of errors for each HTTP status; the first entry with a matching class decides."""


class InboxRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request with its session."""

    site: InboxSite
    http: Request
    session: InboxSession
    token: str
    form: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])

    @property
    def service(self) -> Service:
        return self.site.service()

    def path(self, name: str) -> str:
        """Return the part of the address that the route gives this name."""
        return self.http.path_params[name]

    def query(self, name: str) -> str:
        """Return the query parameter with this name; empty if the address has none."""
        return self.http.query_params.get(name, "")

    @property
    def is_refresh(self) -> bool:
        """Whether an open page asks for its changing part."""
        return self.http.headers.get("hx-request") == "true"

    @property
    def wants_json(self) -> bool:
        """Whether the page's script sent the request; the script passes the answer to the browser's key API."""
        return self.http.headers.get("accept") == "application/json"

    def form_value(self, name: str) -> str:
        """Return the value of one form field; empty if the form does not hold it. Raises `BadForm` for several
        values."""
        values = self.form.get(name, ())
        if len(values) > 1:
            raise BadForm
        return values[0] if values else ""

    def form_values(self) -> dict[str, str]:
        """Return every field with exactly one value."""
        return {name: values[0] for name, values in self.form.items() if len(values) == 1}

    def read_verdict(self, *verdicts: str) -> str:
        """Return which of these buttons sent the form. Raises `BadForm` if none of them did."""
        verdict = self.form_value("decision")
        if verdict not in verdicts:
            raise BadForm
        return verdict

    def render_page(
        self, template: str, /, *, remark: Remark | None = None, status: int | None = None, **values: object
    ) -> Response:
        """Return the page with the given status, or else with that of its remark, or else 200."""
        csrf, principal = derive_csrf_token(self.token), self.session.principal
        text = render(template, csrf=csrf, principal=principal, remark=remark, typed=self.form_value, **values)
        return HTMLResponse(text, status_code=status or (200 if remark is None else remark.status))

    async def render_live(self, page: str, part: str, token: str, build: Callable[[], Awaitable[Values]]) -> Response:
        """Return the page. To an open page, return only its changing part, or 204 if the page already shows that part.

        `token` changes with what the page shows.
        """
        if not self.is_refresh:
            return self.render_page(page, seen=token, **await build())
        if self.query("seen") == token:
            return Response(status_code=204)
        return self.render_page(part, seen=token, **await build())

    def confirm(self, draft: JsonValue, render_draft: Callable[[str], Response]) -> Response | None:
        """Return None if the form's page showed `draft` and the form approves it, else the page that shows `draft`.

        Only the page that shows a draft holds its hash, in the field `seen`, so no unseen draft can be approved.
        """
        draft_hash = hash_draft(draft)
        is_shown = compare_digest(self.form_value("seen").encode(), draft_hash.encode())
        return None if is_shown and self.form_value("decision") in CONFIRMING else render_draft(draft_hash)

    def keep_key(self, remark: Remark | None, *, is_new: bool) -> str:
        """Return the key of a form that is shown again; a new key if it is new, or after a conflict (status 409)."""
        is_other = remark is not None and remark.status == 409
        return self.new_key() if is_new or is_other else self.form_value("key")

    def new_key(self) -> str:
        """Return a key for a form, so that the form acts once however often it is sent."""
        return new_id()

    def read_key(self, purpose: str) -> str:
        """Return a key for this purpose and form; it is the same if the form is sent again. Raises `BadForm`."""
        key = self.form_value("key")
        if _KEY.fullmatch(key) is None:
            raise BadForm
        form_fields: JsonValue = [
            [name, list(values)] for name, values in sorted(self.form.items()) if name not in _OWN_FIELDS
        ]
        return f"inbox:{digest([key, purpose, form_fields])}"

    def redirect(self, path: str) -> Response:
        """Send the browser to another page of the inbox."""
        return RedirectResponse(f"{INBOX_PATH}{path}", status_code=303)


Handler = Callable[[InboxRequest], Awaitable[Response]]


class PageRoutes:
    """The addresses below the inbox that one module answers: pages, which change nothing, and forms, which do."""

    def __init__(self) -> None:
        self._handlers: list[tuple[str, Handler, bool]] = []

    def page(self, *paths: str, is_form: bool = False) -> Callable[[Handler], Handler]:
        """Let the function answer these addresses."""

        def add(handler: Handler) -> Handler:
            self._handlers += [(path, handler, is_form) for path in paths]
            return handler

        return add

    def form(self, *paths: str) -> Callable[[Handler], Handler]:
        """Let the function take the form that is sent to these addresses; GET is refused."""
        return self.page(*paths, is_form=True)

    def build(self, site: InboxSite) -> list[Route]:
        return [_build_route(site, *entry) for entry in self._handlers]


def _build_route(site: InboxSite, path: str, handler: Handler, is_form: bool) -> Route:
    async def run(http: Request) -> Response:
        request = await (_load_form(site, http) if is_form else _load_session(site, http))
        return _redirect_to_pairing(http) if request is None else await handler(request)

    async def endpoint(http: Request) -> Response:
        return await run_with_error_page(http, partial(run, http))

    return Route(f"{INBOX_PATH}{path}", endpoint, methods=["GET", "POST"] if is_form else ["GET"])


async def _load_form(site: InboxSite, http: Request) -> InboxRequest:
    """Return the request with its form. Raises `Forbidden` unless it is a POST with a form of this session."""
    if http.method != "POST":
        raise Forbidden("opening a page changes nothing; decide with the buttons on the page of the question")
    request = await _load_session(site, http, await read_form(http))
    if request is None:
        raise Forbidden("this browser has no session, or its session has ended; nothing was changed")
    if not compare_digest(request.form_value("csrf").encode(), derive_csrf_token(request.token).encode()):
        raise Forbidden
    return request


async def run_with_error_page(http: Request, run: Callable[[], Awaitable[Response]]) -> Response:
    """Return the response of `run`, or a page that says what went wrong."""
    try:
        return await run()
    except PlanwardenError as error:
        return render_error_page(error)
    except HTTPException:
        # Starlette itself raises this, for a body over the limit.
        raise
    # The outermost handler of a request: the page says that it failed, the log says why.
    except Exception:
        logger.exception("the inbox failed to answer %s", http.url.path)
        return render_error_page(PlanwardenError("planwarden failed to answer this request; its log says why"))


def render_error_page(error: PlanwardenError) -> Response:
    status = http_status(error)
    return HTMLResponse(render("error.html", status=status, message=error.message), status_code=status)


def http_status(error: PlanwardenError) -> int:
    return next((status for status, kinds in _ERRORS.items() if isinstance(error, kinds)), 500)


def describe_refusal(error: PlanwardenError, outcome: str = "") -> Remark:
    """Return the remark that says why a form was refused, followed by `outcome`."""
    text = capitalize(escape_text(error.message))
    return Remark(f"{text}. {outcome}" if outcome else text, http_status(error), "bad")


def hash_draft(draft: JsonValue) -> str:
    """Return the hash of a draft, which the page that shows the draft holds in its field `seen`."""
    return digest(draft, context="inbox-draft/v1")


def build_token(content: object) -> str:
    """Return a token that changes with the `repr` of what is shown, so that a page knows whether it is current."""
    return hashlib.sha256(repr(content).encode("utf-8", "surrogatepass")).hexdigest()[:16]


async def read_form(http: Request) -> dict[str, tuple[str, ...]]:
    """Return the fields of a urlencoded body. Raises `BadForm` for any other body."""
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise BadForm(f"the body is not {FORM}")
    try:
        text = (await http.body()).decode("ascii")
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=MAX_FORM_FIELDS
        )
    except (ValueError, ClientDisconnect):
        raise BadForm from None
    fields: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        # Browsers send every line break as CR LF (https://html.spec.whatwg.org/#constructing-the-form-data-set).
        fields[name] = (*fields.get(name, ()), value.replace("\r\n", "\n"))
    return fields


async def _load_session(
    site: InboxSite, http: Request, form: Mapping[str, tuple[str, ...]] | None = None
) -> InboxRequest | None:
    """Return the request with its session; None if the browser has no open session."""
    token = http.cookies.get(site.cookie_name)
    session = await site.access().find_session(token)
    if session is None or token is None:
        return None
    if site.on_activity is not None:
        site.on_activity()
    return InboxRequest(site=site, http=http, session=session, token=token, form=form or {})


def _redirect_to_pairing(http: Request) -> Response:
    """Send the browser to the form for a code, or to a page that reloads itself if the cookie may have been withheld.

    Browsers withhold a strict cookie from every request that another site started, including a click on a link in a
    chat. A page of ours that reloads itself is not another site (https://www.rfc-editor.org/rfc/rfc6265#section-5.3 and
    its successor).
    """
    if http.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={"HX-Redirect": f"{INBOX_PATH}/pair"})
    url = str(http.url.replace(scheme="", netloc=""))
    if http.headers.get("sec-fetch-site") == "cross-site":
        return HTMLResponse(render("reload.html", url=url))
    return RedirectResponse(f"{INBOX_PATH}/pair?next={quote(url, safe='')}", status_code=303)
