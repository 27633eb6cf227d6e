"""The form that adds a schedule to a saved plan. Pressing Enter shows the next times; a button adds the schedule."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

from starlette.responses import Response

from planwarden.agent.common.errors import InvalidArguments, UsageError
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.inbox.forms import (
    FilledForm,
    build_fault_remark,
    build_input_fields,
    fill_inputs_form,
    keep_texts,
)
from planwarden.server.inbox.request import BadForm, InboxRequest, NotFound, PageRoutes, Remark, describe_refusal
from planwarden.server.inbox.saved.list_page import build_plan_card, find_shown_plan
from planwarden.server.inbox.saved.schedule_page import MISSED, OVERLAPS, open_book
from planwarden.server.plans.plan_file import PlanFault, SavedPlan
from planwarden.server.schedules.cron import CronTimes, find_zone
from planwarden.server.schedules.schedule_commands import ScheduleRequest
from planwarden.server.views.escaping import escape_text
from planwarden.storage.schedules import ScheduleStore

SHOWN_TIMES = 5
DEFAULT_ZONE = "UTC"
CHANGED = "The plan has changed since you looked at it. This page shows it as it is now; no schedule was added."

ROUTES = PageRoutes()


@ROUTES.page("/saved/{name}/schedule")
async def show_schedule_form(request: InboxRequest) -> Response:
    return _render_form(request, await _find_plan(request))


@ROUTES.form("/saved/{name}/schedule/add")
async def add_schedule(request: InboxRequest) -> Response:
    """Add the schedule, or only show when it would tick. The same form, sent twice, adds one schedule."""
    verdict = request.read_verdict("add", "times")
    key = request.read_key(f"schedule {request.path('name')}")
    schedule_id = hashlib.sha256(key.encode()).hexdigest()[:32]
    book = open_book(request)
    if verdict == "add" and await ScheduleStore(request.service.store).find(schedule_id) is not None:
        return request.redirect(f"/schedules/{schedule_id}?did=added")
    plan = await _find_plan(request)
    typed = keep_texts(plan.inputs, request.form_values())
    if request.form_value("digest") != plan.digest:
        return _render_form(request, plan, Remark(CHANGED, 409), filled=typed)
    cron, zone = request.form_value("cron").strip(), request.form_value("timezone").strip()
    times, faults = _find_times(request, cron, zone)
    form = fill_inputs_form(plan.inputs, request.form_values())
    if verdict == "times":
        return _render_form(request, plan, filled=typed, faults=faults, times=times)
    overlap, missed = request.form_value("overlap"), request.form_value("missed")
    if overlap not in OVERLAPS or missed not in MISSED:
        raise BadForm
    if faults or not form.is_usable:
        remark = build_fault_remark(form) if not form.is_usable else Remark("No schedule was added.", 422, "bad")
        return _render_form(request, plan, remark, filled=form, faults=faults, times=times)
    order = ScheduleRequest(
        plan=plan.name, cron=cron, timezone=zone, inputs=form.values, overlap=overlap, missed=missed, owner=LOCAL
    )
    try:
        await book.add(order, schedule_id)
    except UsageError as error:
        remark = describe_refusal(error, "No schedule was added.")
        return _render_form(request, plan, remark, filled=form, times=times)
    return request.redirect(f"/schedules/{schedule_id}?did=added")


async def _find_plan(request: InboxRequest) -> SavedPlan:
    plan = await find_shown_plan(request.service, request.path("name"))
    if isinstance(plan, PlanFault):
        raise NotFound("the file of this saved plan cannot be used; its page says why")
    return plan


def _find_times(request: InboxRequest, cron: str, zone: str) -> tuple[tuple[datetime, ...], dict[str, str]]:
    """Return the next ticks in the schedule's zone, none if there is a fault; and the two fields' faults, escaped."""
    faults: dict[str, str] = {}
    try:
        timezone = find_zone(zone)
    except InvalidArguments as error:
        faults["timezone"] = escape_text(error.message)
        zone, timezone = DEFAULT_ZONE, find_zone(DEFAULT_ZONE)
    try:
        ticks = CronTimes(cron, zone).list_next(request.service.store.clock.now(), SHOWN_TIMES)
    except InvalidArguments as error:
        faults["cron"] = escape_text(error.message)
        ticks = []
    return (() if faults else tuple(datetime.fromtimestamp(tick, timezone) for tick in ticks)), faults


def _render_form(
    request: InboxRequest,
    plan: SavedPlan,
    remark: Remark | None = None,
    *,
    filled: FilledForm | None = None,
    faults: Mapping[str, str] | None = None,
    times: Sequence[datetime] = (),
) -> Response:
    is_new = filled is None
    return request.render_page(
        "saved_schedule.html",
        remark=remark,
        plan=build_plan_card(plan),
        digest=plan.digest,
        key=request.keep_key(remark, is_new=is_new),
        fields=build_input_fields(plan.inputs),
        filled=filled,
        zone=DEFAULT_ZONE,
        overlaps=OVERLAPS,
        missing=MISSED,
        faults=faults or {},
        times=times,
        takes_reader_zone=is_new,
    )
