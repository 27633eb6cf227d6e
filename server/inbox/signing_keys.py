"""Signing keys in the inbox: signing on the page of a question, and the page that lists, adds and removes keys.

The script sends the form of a question twice to the same address: first to get a challenge for the answer in the form,
then with the signature over that challenge. Both times the server builds the same answer from the same fields.
"""

from urllib.parse import urlsplit

import msgspec
from starlette.responses import JSONResponse, Response

from planwarden.agent.approval.answers import Decision, can_decide, has_voted
from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.execution import events as ev
from planwarden.server.inbox.inbox_port import INBOX_PATH
from planwarden.server.inbox.questions import QuestionRecord
from planwarden.server.inbox.request import InboxRequest, PageRoutes
from planwarden.server.signatures.keyring import MAX_LABEL_CHARS, Keyring, SignedStatement
from planwarden.server.signatures.signature import EXTRA, RelyingParty, SignatureRefused, can_use_keys_of, is_available
from planwarden.server.views.escaping import escape_text

KEYS_PATH = f"{INBOX_PATH}/keys"
MAX_REMOVED = 50
"""The most removed keys that the page shows; it shows the newest ones."""

ROUTES = PageRoutes()


class KeyObstacle(msgspec.Struct, frozen=True, kw_only=True):
    """Why the browser cannot use a key, and a link to what helps."""

    text: str
    link: str = ""
    action: str = ""
    """The text of the link."""


def find_relying_party(request: InboxRequest) -> RelyingParty | None:
    """Return the relying party at the browser's address; None if browsers cannot use keys there."""
    origin = request.site.origin
    parts = urlsplit(origin or "")
    if origin is None or parts.hostname is None or not can_use_keys_of(origin, parts.hostname):
        return None
    if request.http.headers.get("host") != parts.netloc:
        return None
    return RelyingParty(rp_id=parts.hostname, origin=origin)


def _require_relying_party(request: InboxRequest) -> RelyingParty:
    relying_party = find_relying_party(request)
    if relying_party is None:
        raise SignatureRefused("browsers cannot use keys at this address")
    return relying_party


def find_obstacle(request: InboxRequest, path: str) -> KeyObstacle | None:
    """Return why the browser cannot use keys on the page at `path`; None if it can."""
    if not is_available():
        return KeyObstacle(text=f"Signing needs an extra that is not installed with planwarden: {EXTRA}")
    if find_relying_party(request) is not None:
        return None
    origin = request.site.origin
    if origin is None or urlsplit(origin).netloc == request.http.headers.get("host"):
        return KeyObstacle(
            text="Browsers cannot use keys at this address; they need https, or localhost on this machine."
        )
    return KeyObstacle(
        text=f"Browsers can use keys at {origin} only; a browser without a session there needs a new code.",
        link=f"{origin}{path}",
        action="Go there",
    )


def find_counting_assurance(request: InboxRequest, record: QuestionRecord) -> ev.Assurance | None:
    """Return the lowest assurance with which this person's approval counts; None if it does not count at all."""
    policy, suspension, name = request.service.policy, record.suspension, request.session.principal
    if suspension.question.undecidable or has_voted(policy, suspension, name):
        return None
    needs = suspension.question.needs
    if can_decide(policy, record.execution, needs, name, "human") is not None:
        return "human"
    return None if can_decide(policy, record.execution, needs, name, "signed") is None else "signed"


def can_sign(request: InboxRequest, record: QuestionRecord) -> bool:
    """Return whether this person can sign: the question is open, and only a signature counts."""
    return record.card.is_open and find_counting_assurance(request, record) == "signed"


async def find_signing_obstacle(request: InboxRequest, record: QuestionRecord) -> KeyObstacle | None:
    """Return why this person cannot sign here, although the signature would count; None if the person can sign."""
    obstacle = find_obstacle(request, f"{INBOX_PATH}/suspensions/{record.suspension_id}")
    relying_party = find_relying_party(request)
    if obstacle is not None or relying_party is None:
        return obstacle
    usable = await Keyring(request.service.store).list_usable_keys(request.session.principal)
    if any(key.rp_id == relying_party.rp_id for key in usable):
        return None
    return KeyObstacle(
        text="You approve this call with a key, and you have none here.", link=f"{INBOX_PATH}/keys", action="Add one"
    )


async def take_signature(request: InboxRequest, record: QuestionRecord, decision: Decision) -> Response | None:
    """Return a challenge if the form has no signature; record a valid signature and return None.

    Raises:
        SignatureRefused: the signature does not count.
    """
    if not can_sign(request, record):
        raise SignatureRefused("your signature does not count for this call")
    if decision.modified_args is not None:
        raise SignatureRefused("keep the edited arguments first, then sign the new revision")
    relying_party, keyring = _require_relying_party(request), Keyring(request.service.store)
    statement = SignedStatement(
        execution_id=record.execution.execution_id,
        suspension_id=record.suspension_id,
        digest=record.question.digest,
        content="" if decision.content is None else digest(decision.content, context="approval-answer/v1"),
    )
    if request.form_value("signature"):
        await keyring.record_signature(
            request.session, relying_party, statement, request.form_value("nonce"), request.form_value("signature")
        )
        return None
    if not request.wants_json:
        raise SignatureRefused("signing needs JavaScript, which did not run in this browser; nothing was decided")
    try:
        return JSONResponse(await keyring.request_signature(request.session, relying_party, statement))
    except UsageError as error:
        return JSONResponse({"message": error.message}, status_code=422)


@ROUTES.page("/keys")
async def show_keys(request: InboxRequest) -> Response:
    return await _render_keys(request)


@ROUTES.form("/keys/add")
async def add_key(request: InboxRequest) -> Response:
    """Return a challenge if the script asks for one; add the key if the form has the credential."""
    keyring = Keyring(request.service.store)
    try:
        relying_party = _require_relying_party(request)
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
        await Keyring(request.service.store).remove_own_key(request.session, request.path("key_id"))
    except UsageError as error:
        return await _render_keys(request, fault=error.message)
    return request.redirect("/keys")


async def _render_keys(request: InboxRequest, fault: str = "") -> Response:
    keyring, name = Keyring(request.service.store), request.session.principal
    keys = [key for key in await keyring.list_keys() if key.principal == name]
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
