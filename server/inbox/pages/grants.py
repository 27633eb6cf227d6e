"""The pages of standing grants: a person makes one while approving a call, and ends one with a button."""

from collections.abc import Mapping

from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.approval.grants import MAX_HOURS, MAX_USES, list_properties
from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.api.grants import MAX_LISTED, GrantRequest, GrantView
from planwarden.server.inbox.allowing import (
    NOT_IN_ADVANCE,
    answer_and_allow,
    build_authority,
    describe_grant,
    find_allowable,
    read_titles,
)
from planwarden.server.inbox.questions import QuestionRecord
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.fields import derive_key
from planwarden.server.views.row_ranges import read_number

DURATIONS: Mapping[str, str] = {"15": "15 minutes", "60": "1 hour", "240": "4 hours", str(MAX_HOURS * 60): "8 hours"}
DEFAULT_USES = 10
MAX_OVER = 50
"""Of those that have ended, the newest."""


ROUTES = PageRoutes()


@ROUTES.page("/grants")
async def show_grants(request: InboxRequest) -> Response:
    titles, listing = await read_titles(request.service), request.service.grants.list
    # However many have ended, those that allow something are listed.
    grants_by_id = {grant.grant_id: grant for grant in (*await listing(only_open=True), *await listing())}
    usable, over = list[tuple[GrantView, str]](), list[tuple[GrantView, str]]()
    for grant in grants_by_id.values():
        (usable if grant.is_open and not grant.is_stale else over).append((grant, describe_grant(grant, titles)))
    return request.render_page(
        "grants.html", usable=usable, over=over[:MAX_OVER], is_full=len(usable) >= MAX_LISTED, max_listed=MAX_LISTED
    )


@ROUTES.form("/grants/{grant_id}/revoke")
async def revoke_grant(request: InboxRequest) -> Response:
    await request.service.grants.revoke(request.path("grant_id"), build_authority(request))
    return request.redirect("/grants")


@ROUTES.page("/suspensions/{suspension_id}/grant")
async def show_grant_form(request: InboxRequest) -> Response:
    return _render_grant_form(request, await _find_grantable_question(request))


@ROUTES.form("/suspensions/{suspension_id}/grant/make")
async def make_grant(request: InboxRequest) -> Response:
    """Approve the call that the question is about, and allow calls like it."""
    record = await _find_grantable_question(request)
    uses, minutes = read_number(request.form_value("uses")), request.form_value("minutes")
    if record.card.is_open and (uses is None or minutes not in DURATIONS):
        return _render_grant_form(
            request, record, fault=f"Enter a number of calls from 1 to {MAX_USES}, and choose how long."
        )
    form_texts = request.form_values()
    arguments: dict[str, JsonValue] = {
        name: value
        for name, value in (record.question.arguments or {}).items()
        if form_texts.get(f"fix.{derive_key(name)}") == "yes"
    }
    grant_request = GrantRequest(
        tool_name=record.question.tool_name or "",
        arguments=arguments,
        free=tuple(name for name in record.question.arguments or {} if name not in arguments),
        opens_others=form_texts.get("others") == "yes",
        uses=uses or 0,
        expires_in_s=int(minutes) * 60.0 if minutes in DURATIONS else 0.0,
        owner=record.row.principal,
        definition_digest=record.question.definition_digest,
    )
    try:
        return await answer_and_allow(request, record, grant_request)
    except InvalidArguments as error:
        return _render_grant_form(request, record, fault=error.message)


async def _find_grantable_question(request: InboxRequest) -> QuestionRecord:
    record = await find_allowable(request)
    if not record.card.can_be_granted:
        raise BadForm(NOT_IN_ADVANCE)
    return record


def _render_grant_form(request: InboxRequest, record: QuestionRecord, fault: str = "") -> Response:
    call = record.card.call
    arguments = {} if call is None else {argument.name: argument for argument in call.arguments}
    definition = request.service.tools.get(record.question.tool_name or "")
    others = [escape_text(name) for name in list_properties(definition) if name not in arguments] if definition else []
    return request.render_page(
        "grant.html",
        status=422 if fault else 200,
        card=record.card,
        rows=[(f"fix.{derive_key(name)}", argument) for name, argument in arguments.items()],
        others=", ".join(others),
        minutes=DURATIONS,
        uses=request.form_value("uses") or str(DEFAULT_USES),
        max_uses=MAX_USES,
        fault=fault,
    )
