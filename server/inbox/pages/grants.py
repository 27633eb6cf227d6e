"""The pages of standing grants: a person makes one while approving a call, and ends one with a button."""

from collections.abc import Mapping, Sequence

import msgspec
from pydantic import JsonValue
from starlette.responses import Response
from starlette.routing import BaseRoute

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.approval.grants import MAX_HOURS, MAX_USES, VERSION_DIGITS, describe_uses_a_day
from planwarden.agent.approval.ownership import find_owner_for
from planwarden.agent.common.errors import (
    AlreadyDecided,
    PlanwardenError,
    StaleDefinition,
    StaleRevision,
    UsageError,
)
from planwarden.server.api.grants import GrantedStepView, GrantRequest, GrantView
from planwarden.server.inbox.decision import CHANNEL, WAIT_S, record_decision
from planwarden.server.inbox.forms import derive_key
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.questions import QuestionRecord, find_question
from planwarden.server.inbox.request import BadForm, InboxRequest, form_route, page_route
from planwarden.server.inbox.site import InboxSite
from planwarden.server.inbox.value_view import ValueView
from planwarden.server.views.facts import escape_text
from planwarden.server.views.voices import describe_proof

DURATIONS: Mapping[str, str] = {"15": "15 minutes", "60": "1 hour", "240": "4 hours", str(MAX_HOURS * 60): "8 hours"}
DEFAULT_USES = 10


class ListedGrant(msgspec.Struct, frozen=True, kw_only=True):
    grant: GrantView
    tool: str
    words: str
    """What exactly is allowed, and who allowed it."""
    arguments: tuple[tuple[str, ValueView], ...]


def build_grant_routes(site: InboxSite) -> Sequence[BaseRoute]:
    question = f"{INBOX_PATH}/suspensions/{{suspension_id}}/grant"
    return (
        page_route(site, f"{INBOX_PATH}/grants", show_grants),
        form_route(site, f"{INBOX_PATH}/grants/{{grant_id}}/revoke", revoke_grant),
        page_route(site, question, show_grant_form),
        form_route(site, f"{question}/make", make_grant),
    )


async def show_grants(request: InboxRequest) -> Response:
    grants = [_build_listed_grant(grant) for grant in await request.service.grants.list()]
    return request.render_page(
        "grants.html",
        usable=[g for g in grants if g.grant.is_open and not g.grant.is_stale],
        over=[g for g in grants if not g.grant.is_open or g.grant.is_stale],
    )


async def revoke_grant(request: InboxRequest) -> Response:
    await request.service.grants.revoke(request.http.path_params["grant_id"], _build_authority(request))
    return request.redirect("/grants")


async def show_grant_form(request: InboxRequest) -> Response:
    return _render_grant_form(request, await _find_grantable_question(request))


async def make_grant(request: InboxRequest) -> Response:
    """Approve the call that the question is about, and allow calls like it. Either both happen or neither."""
    record = await _find_grantable_question(request)
    if not record.view.is_open:
        raise AlreadyDecided("this question has been decided in the meantime; nothing was allowed")
    if request.form_value("digest") != record.view.digest:
        raise StaleRevision("this question was revised since you looked at it; nothing was allowed")
    uses, minutes = request.form_value("uses"), request.form_value("minutes")
    if not (uses.isascii() and uses.isdigit() and len(uses) <= 6) or minutes not in DURATIONS:
        return _render_grant_form(
            request, record, fault=f"Enter a number of calls from 1 to {MAX_USES}, and choose how long."
        )
    sent = request.form_values()
    arguments: dict[str, JsonValue] = {
        name: value
        for name, value in (record.suspension.question.arguments or {}).items()
        if sent.get(f"fix.{derive_key(name)}") == "yes"
    }
    grant = GrantRequest(
        tool_name=record.suspension.question.tool_name or "",
        arguments=arguments,
        uses=int(uses),
        expires_in_s=int(minutes) * 60.0,
        owner=record.row.principal,
        definition_digest=record.suspension.question.definition_digest,
    )
    authority = _build_authority(request)
    try:
        # It is made first, so that the next calls of the plan find it; a decision that came too late ends it again.
        made = await request.service.grants.make(grant, authority)
    except StaleDefinition:
        raise
    except UsageError as error:
        return _render_grant_form(request, record, fault=error.message)
    try:
        decision = Decision(approved=True)
        execution = await record_decision(request, record, decision, record.view.digest, wait_s=WAIT_S)
    except PlanwardenError:
        await request.service.grants.revoke(made.grant_id, authority)
        raise
    if any(found.suspension_id == record.row.suspension_id for found in execution.suspensions):
        await request.service.grants.revoke(made.grant_id, authority)
        raise BadForm("your approval does not suffice for this call; nothing was approved or allowed")
    return request.redirect(f"/suspensions/{record.row.suspension_id}")


async def _find_grantable_question(request: InboxRequest) -> QuestionRecord:
    record = await find_question(request.service, request.http.path_params["suspension_id"])
    question, policy = record.suspension.question, request.service.engine.grants.policy
    owner = find_owner_for(policy, record.execution, request.session.principal)
    worth = policy.worth("human", request.session.principal, owner, question.needs)
    if not record.view.can_be_granted or worth is None:
        raise BadForm("calls like this one cannot be allowed in advance")
    return record


def _render_grant_form(request: InboxRequest, record: QuestionRecord, fault: str = "") -> Response:
    names, call = record.suspension.question.arguments or {}, record.view.call
    rows = [
        (f"fix.{derive_key(name)}", argument)
        for name, argument in zip(names, call.arguments if call else (), strict=True)
    ]
    return request.render_page(
        "grant.html",
        status=422 if fault else 200,
        question=record.view,
        rows=rows,
        minutes=DURATIONS,
        uses=request.form_value("uses") or str(DEFAULT_USES),
        max_uses=MAX_USES,
        fault=fault,
    )


def _build_authority(request: InboxRequest) -> Authority:
    return Authority(assurance="human", channel=CHANNEL, principal=request.session.principal)


def _describe_grant(grant: GrantView) -> str:
    """What exactly the grant allows, and who made it."""
    values = "exactly these values, and any values of other arguments" if grant.arguments else "any arguments"
    whose = "of everybody" if grant.owner is None else f"of {escape_text(grant.owner)}"
    who = f"{escape_text(grant.created_by)} ({describe_proof(grant.assurance, grant.channel)})"
    if grant.step is not None:
        count = describe_uses_a_day(grant.uses)
        return f"At most {count} with {values}, {_describe_step(grant.step)}, in runs {whose}. Allowed by {who}."
    count = f"{grant.uses} call{'' if grant.uses == 1 else 's'}"
    return f"At most {count} with {values}, in plans {whose}. Allowed by {who}."


def _describe_step(step: GrantedStepView) -> str:
    used = ", ".join(f"{escape_text(name)} {found[:VERSION_DIGITS]}" for name, found in step.used_plans.items())
    within = f" with {used} within it" if used else ""
    return (
        f"as step {escape_text(step.step_id)} of the saved plan {escape_text(step.plan)}, version "
        f"{step.version[:VERSION_DIGITS]}{within}, writes them"
    )


def _build_listed_grant(grant: GrantView) -> ListedGrant:
    return ListedGrant(
        grant=grant,
        tool=escape_text(grant.tool_name),
        words=_describe_grant(grant),
        arguments=tuple((escape_text(name), ValueView(value)) for name, value in grant.arguments.items()),
    )
