"""Standing grants: what a person has allowed beforehand, made from a question, ended with a button."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from starlette.responses import Response
from starlette.routing import BaseRoute

from planwarden.agent.approval.answers import Authority
from planwarden.agent.approval.grants import MAX_HOURS, MAX_USES
from planwarden.agent.common.errors import AlreadyDecided, StaleRevision, UsageError
from planwarden.server.api.grants import GrantRequest, GrantView
from planwarden.server.inbox.address import BASE
from planwarden.server.inbox.answer import CHANNEL
from planwarden.server.inbox.facts import ShownValue, shown_value
from planwarden.server.inbox.fields import key_of
from planwarden.server.inbox.lookup import FoundQuestion, find_question
from planwarden.server.inbox.request import BadForm, InboxRequest, change, page
from planwarden.server.inbox.site import InboxSite
from planwarden.server.views.facts import escape_text

MINUTES: Mapping[str, str] = {"15": "15 minutes", "60": "1 hour", "240": "4 hours", str(MAX_HOURS * 60): "8 hours"}
USES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGrant:
    grant: GrantView
    tool: str
    owner: str
    made_by: str
    arguments: tuple[tuple[str, ShownValue], ...]


def grant_routes(site: InboxSite) -> Sequence[BaseRoute]:
    question = f"{BASE}/suspensions/{{suspension_id}}/grant"
    return (
        page(site, f"{BASE}/grants", show_grants),
        change(site, f"{BASE}/grants/{{grant_id}}/revoke", revoke),
        page(site, question, show_form),
        change(site, f"{question}/make", make),
    )


async def show_grants(visit: InboxRequest) -> Response:
    found = [_shown(grant) for grant in await visit.service.grants.list()]
    return visit.page(
        "grants.html",
        usable=[g for g in found if g.grant.is_open and not g.grant.is_stale],
        over=[g for g in found if not g.grant.is_open or g.grant.is_stale],
    )


async def revoke(visit: InboxRequest) -> Response:
    await visit.service.grants.revoke(visit.request.path_params["grant_id"], _authority(visit))
    return visit.to("/grants")


async def show_form(visit: InboxRequest) -> Response:
    return _form(visit, await _asked(visit))


async def make(visit: InboxRequest) -> Response:
    """Allow calls like the one of the question; the question itself stays open."""
    asked = await _asked(visit)
    if not asked.shown.is_open:
        raise AlreadyDecided("this question was decided meanwhile; nothing was allowed")
    if visit.given("digest") != asked.shown.digest:
        raise StaleRevision("this question was revised since you looked at it; nothing was allowed")
    uses, minutes = visit.given("uses"), visit.given("minutes")
    if not (uses.isascii() and uses.isdigit() and len(uses) <= 6) or minutes not in MINUTES:
        return _form(visit, asked, fault=f"Write how many calls, from 1 to {MAX_USES}, and choose how long.")
    given = visit.fields()
    arguments: dict[str, JsonValue] = {
        name: value
        for name, value in (asked.found.question.arguments or {}).items()
        if given.get(f"fix.{key_of(name)}") == "yes"
    }
    request = GrantRequest(
        tool_name=asked.found.question.tool_name or "",
        arguments=arguments,
        uses=int(uses),
        expires_in_s=int(minutes) * 60.0,
        owner=asked.row.principal,
    )
    try:
        await visit.service.grants.make(request, _authority(visit))
    except UsageError as error:
        return _form(visit, asked, fault=error.message)
    return visit.to("/grants")


async def _asked(visit: InboxRequest) -> FoundQuestion:
    asked = await find_question(visit.service, visit.request.path_params["suspension_id"])
    if not asked.shown.may_be_granted:
        raise BadForm("calls like this one cannot be allowed beforehand")
    return asked


def _form(visit: InboxRequest, asked: FoundQuestion, fault: str = "") -> Response:
    names = [(name, key_of(name)) for name in (asked.found.question.arguments or {})]
    rows = [
        (f"fix.{key}", argument)
        for (_, key), argument in zip(names, asked.shown.call.arguments if asked.shown.call else (), strict=True)
    ]
    return visit.page(
        "grant.html",
        status=422 if fault else 200,
        question=asked.shown,
        rows=rows,
        minutes=MINUTES,
        uses=visit.given("uses") or str(USES),
        max_uses=MAX_USES,
        fault=fault,
    )


def _authority(visit: InboxRequest) -> Authority:
    return Authority(assurance="human", channel=CHANNEL, principal=visit.session.principal)


def _shown(grant: GrantView) -> ShownGrant:
    return ShownGrant(
        grant=grant,
        tool=escape_text(grant.tool_name),
        owner=escape_text(grant.owner or ""),
        made_by=escape_text(grant.created_by),
        arguments=tuple((escape_text(name), shown_value(value)) for name, value in grant.arguments.items()),
    )
