"""The pages of standing grants: a person makes a grant while approving calls, and ends a grant with a button.

A grant allows calls like the one in the question, or the calls of a step of a saved plan. A grant of the second kind is
what `planwarden grant add TOOL --plan NAME --step ID --uses-per-day N --for 90d --owner WHOSE` makes, but for the plan
as it was when the question's run began.
"""

from collections.abc import Mapping
from datetime import date, datetime, timedelta

from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.approval.grants import MAX_HOURS, MAX_STEP_DAYS, MAX_STEP_LIFE_S, MAX_USES, list_argument_names
from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.api.grants import MAX_LISTED, FoundStep, GrantRequest, GrantView, StepCall
from planwarden.server.inbox.allowing import (
    NOT_IN_ADVANCE,
    answer_and_allow,
    build_authority,
    describe_grant,
    find_grantable_question,
    find_step,
    find_step_tool,
    read_titles,
)
from planwarden.server.inbox.questions import QuestionRecord
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes
from planwarden.server.inbox.row_choice import RowChoice, build_rows_view, split_rows
from planwarden.server.views.decisions import describe_step_terms, describe_value_source, format_last_day, name_owner
from planwarden.server.views.escaping import ValueView, escape_text
from planwarden.server.views.fields import derive_key, read_number
from planwarden.server.views.instants import to_utc

DURATIONS: Mapping[str, str] = {"15": "15 minutes", "60": "1 hour", "240": "4 hours", str(MAX_HOURS * 60): "8 hours"}
DEFAULT_USES, DEFAULT_STEP_USES = 10, 5
MAX_OVER = 50
"""The most ended grants that the page shows; it shows the newest."""
MAX_CALLS = 20
"""The most calls of a step that are shown one by one."""
FAULT = f"Enter a number of calls from 1 to {MAX_USES}, and choose how long."
STEP_FAULT = f"Enter a number of calls from 1 to {MAX_USES}, and a day that is at most {MAX_STEP_DAYS} days away."

ROUTES = PageRoutes()


@ROUTES.page("/grants")
async def show_grants(request: InboxRequest) -> Response:
    titles, listing = await read_titles(request.service), request.service.grants.list
    # Open grants are read separately: otherwise many ended grants could push them off the page.
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
    """Approve the call in the question, and allow calls like it up to the chosen number and time."""
    record = await _find_grantable_question(request)
    uses, minutes = read_number(request.form_value("uses")), request.form_value("minutes")
    if record.card.is_open and (uses is None or minutes not in DURATIONS):
        return _render_grant_form(request, record, fault=FAULT)
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
        owner=record.execution.principal,
        definition_digest=record.question.definition_digest,
    )
    try:
        return await answer_and_allow(request, record, grant_request)
    except InvalidArguments as error:
        return _render_grant_form(request, record, fault=error.message)


async def _find_grantable_question(request: InboxRequest) -> QuestionRecord:
    record = await find_grantable_question(request)
    if not record.card.can_be_granted:
        raise BadForm(NOT_IN_ADVANCE)
    return record


def _render_grant_form(request: InboxRequest, record: QuestionRecord, fault: str = "") -> Response:
    call = record.card.call
    arguments = {} if call is None else {argument.name: argument for argument in call.arguments}
    definition = request.service.tools.get(record.question.tool_name or "")
    others = (
        [escape_text(name) for name in list_argument_names(definition) if name not in arguments] if definition else []
    )
    return request.render_page(
        "grant.html",
        status=422 if fault else 200,
        card=record.card,
        rows=[(f"fix.{derive_key(name)}", argument) for name, argument in arguments.items()],
        others=", ".join(others),
        minutes=DURATIONS,
        uses=DEFAULT_USES,
        max_uses=MAX_USES,
        fault=fault,
    )


@ROUTES.page("/suspensions/{suspension_id}/allow-step")
async def show_step_form(request: InboxRequest) -> Response:
    record = await find_grantable_question(request)
    return await _render_step_form(request, record, await find_step(request, record))


@ROUTES.form("/suspensions/{suspension_id}/allow-step/make")
async def make_step_grant(request: InboxRequest) -> Response:
    """Approve all calls in the question, and allow the step's calls in later runs."""
    record = await find_grantable_question(request)
    plan_step = await find_step(request, record)
    uses, seconds = read_number(request.form_value("uses")), _read_end(request, request.form_value("until"))
    if record.card.is_open and (uses is None or seconds is None):
        return await _render_step_form(request, record, plan_step, fault=STEP_FAULT)
    question = record.question
    grant_request = GrantRequest(
        tool_name=find_step_tool(record) or "",
        step=plan_step.step,
        uses=uses or 0,
        expires_in_s=seconds or 0.0,
        owner=record.execution.principal,
        definition_digest=question.rows[0].definition_digest if question.rows else question.definition_digest,
    )
    try:
        return await answer_and_allow(request, record, grant_request)
    except InvalidArguments as error:
        return await _render_step_form(request, record, plan_step, fault=error.message)


def _read_end(request: InboxRequest, text: str) -> float | None:
    """Return the seconds until the chosen day ends in UTC, at most `MAX_STEP_LIFE_S`; None for an invalid day."""
    now = to_utc(request.service.store.clock.now())
    try:
        day = date.fromisoformat(text) if len(text) == len("2027-02-21") else None
    except ValueError:
        day = None
    if day is None or not now.date() <= day <= (now + timedelta(days=MAX_STEP_DAYS)).date():
        return None
    over = datetime.combine(day, datetime.min.time(), now.tzinfo) + timedelta(days=1)
    return min((over - now).total_seconds(), MAX_STEP_LIFE_S)


async def _render_step_form(
    request: InboxRequest, record: QuestionRecord, plan_step: FoundStep, fault: str = ""
) -> Response:
    question, now = record.question, to_utc(request.service.store.clock.now())
    last = now + timedelta(days=MAX_STEP_DAYS)
    step, whose = plan_step.step, name_owner(record.execution.principal)
    title = (await read_titles(request.service)).get((step.plan_name, step.plan_digest), step.plan_name)
    tool, step_id, plan, version = describe_step_terms(
        find_step_tool(record) or "", step.step_id, title, step.plan_digest
    )
    tools, pages = request.service.tools, split_rows(question.covers)
    return request.render_page(
        "step_grant.html",
        status=422 if fault else 200,
        card=record.card,
        rows=build_rows_view(record.card, tools, RowChoice(), pages) if question.rows else None,
        terms={"tool": tool, "step": step_id, "plan": plan, "version": version, "whose": whose},
        plan_name=escape_text(step.plan_name),
        calls=[_list_arguments(call) for call in plan_step.calls[:MAX_CALLS]],
        more_calls=max(0, len(plan_step.calls) - MAX_CALLS),
        is_loop=plan_step.is_loop,
        attempts=plan_step.attempts,
        uses=max(DEFAULT_STEP_USES, len(question.covers)),
        max_uses=MAX_USES,
        first_day=now.date().isoformat(),
        last_day=last.date().isoformat(),
        last_day_words=format_last_day(last),
        fault=fault,
    )


def _list_arguments(call: StepCall) -> list[tuple[str, ValueView, str]]:
    """Return each argument's name, what the plan writes for it, and the sources of its values (empty if none)."""
    return [
        (escape_text(name), ValueView(value), ", ".join(map(describe_value_source, call.sources.get(name, ()))))
        for name, value in call.arguments.items()
    ]
