"""The page on which a person approves calls of a saved plan's step, and allows those of its later runs.

It makes the grant of `planwarden grant add TOOL --plan NAME --step ID --uses-per-day N --for 90d --owner WHOSE`, for
the plan as this run began with it.
"""

from datetime import date, datetime, timedelta

from starlette.responses import Response

from planwarden.agent.approval.grants import MAX_STEP_DAYS, MAX_STEP_LIFE_S, MAX_USES
from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.api.granted_steps import FoundStep, StepCall
from planwarden.server.api.grants import GrantRequest
from planwarden.server.inbox.allowing import (
    answer_and_allow,
    find_allowable,
    find_step,
    find_step_tool,
    read_titles,
)
from planwarden.server.inbox.questions import QuestionRecord
from planwarden.server.inbox.request import InboxRequest, PageRoutes
from planwarden.server.inbox.row_choice import RowChoice, split_rows
from planwarden.server.inbox.row_view import build_rows_view
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.grant_words import build_step_terms, describe_value_source, format_last_day
from planwarden.server.views.instants import to_utc
from planwarden.server.views.row_ranges import read_number
from planwarden.server.views.value_view import ValueView

DEFAULT_USES = 5
MAX_CALLS = 20
"""Calls of the step that are shown one by one."""
FAULT = f"Enter a number of calls from 1 to {MAX_USES}, and a day that is at most {MAX_STEP_DAYS} days away."


ROUTES = PageRoutes()


@ROUTES.page("/suspensions/{suspension_id}/allow-step")
async def show_step_form(request: InboxRequest) -> Response:
    record = await find_allowable(request)
    return await _render(request, record, await find_step(request, record))


@ROUTES.form("/suspensions/{suspension_id}/allow-step/make")
async def make_step_grant(request: InboxRequest) -> Response:
    """Approve all that the question asks, and allow the step's calls in later runs."""
    record = await find_allowable(request)
    plan_step = await find_step(request, record)
    uses, seconds = read_number(request.form_value("uses")), _read_end(request, request.form_value("until"))
    if record.card.is_open and (uses is None or seconds is None):
        return await _render(request, record, plan_step, fault=FAULT)
    grant_request = GrantRequest(
        tool_name=find_step_tool(record) or "",
        step=plan_step.step,
        uses=uses or 0,
        expires_in_s=seconds or 0.0,
        owner=record.row.principal,
        definition_digest=_find_definition(record),
    )
    try:
        return await answer_and_allow(request, record, grant_request)
    except InvalidArguments as error:
        return await _render(request, record, plan_step, fault=error.message)


def _find_definition(record: QuestionRecord) -> str:
    question = record.question
    return question.rows[0].definition_digest if question.rows else question.definition_digest


def _read_end(request: InboxRequest, text: str) -> float | None:
    """Return seconds until the chosen day is over in UTC, at most those that a grant may last; None for no such day."""
    now = _find_now(request)
    try:
        day = date.fromisoformat(text) if len(text) == len("2027-02-21") else None
    except ValueError:
        day = None
    if day is None or not now.date() <= day <= (now + timedelta(days=MAX_STEP_DAYS)).date():
        return None
    over = datetime.combine(day, datetime.min.time(), now.tzinfo) + timedelta(days=1)
    return min((over - now).total_seconds(), MAX_STEP_LIFE_S)


def _find_now(request: InboxRequest) -> datetime:
    return to_utc(request.service.store.clock.now())


async def _render(request: InboxRequest, record: QuestionRecord, plan_step: FoundStep, fault: str = "") -> Response:
    question, now = record.question, _find_now(request)
    last = now + timedelta(days=MAX_STEP_DAYS)
    titles, step = await read_titles(request.service), plan_step.step
    rows = None
    if question.rows:
        pages = split_rows(question.covers)
        rows = build_rows_view(record.card, request.service.tools, RowChoice(), pages)
    return request.render_page(
        "step_grant.html",
        status=422 if fault else 200,
        card=record.card,
        rows=rows,
        terms=build_step_terms(
            tool_name=find_step_tool(record) or "",
            step_id=step.step_id,
            plan=titles.get((step.plan_name, step.plan_digest), step.plan_name),
            version=step.plan_digest,
            uses=0,
            ends_at=last,
            owner=record.row.principal,
        ),
        plan_name=escape_text(step.plan_name),
        calls=[_list_arguments(call) for call in plan_step.calls[:MAX_CALLS]],
        more_calls=max(0, len(plan_step.calls) - MAX_CALLS),
        is_loop=plan_step.is_loop,
        attempts=plan_step.attempts,
        uses=request.form_value("uses") or str(max(DEFAULT_USES, len(question.covers))),
        max_uses=MAX_USES,
        until=request.form_value("until") or last.date().isoformat(),
        first_day=now.date().isoformat(),
        last_day=last.date().isoformat(),
        last_day_words=format_last_day(last),
        fault=fault,
    )


def _list_arguments(call: StepCall) -> list[tuple[str, ValueView, str]]:
    """Return each argument as the plan writes it, and whose values it takes; empty where the plan writes the value."""
    return [
        (escape_text(name), ValueView(value), ", ".join(map(describe_value_source, call.takes.get(name, ()))))
        for name, value in call.arguments.items()
    ]
