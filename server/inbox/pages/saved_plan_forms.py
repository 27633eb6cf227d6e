"""The forms of one saved plan: its page, which starts a run or shows its forecast, and the form for a new schedule.

A person starts a plan here, and can neither write nor change one. Pressing Enter shows the forecast, or the next times
of the schedule; only a button starts a run or adds the schedule.

Each form carries the version that the page showed and a key of its own. The version is compared again when the run is
created, so a file that has changed since the page showed it starts nothing. The key is stored with the run, so a form
that is sent twice starts only one run, even if two processes receive it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.common.errors import (
    InvalidArguments,
    InvalidPlan,
    LimitExceeded,
    PlanChanged,
    UnknownPlan,
    UsageError,
    count_of,
)
from planwarden.agent.core.execution.events import Starter
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.service import Service
from planwarden.server.inbox.forms import (
    FilledForm,
    build_fault_remark,
    build_input_fields,
    fill_inputs_form,
    keep_texts,
)
from planwarden.server.inbox.pages.saved_plans import (
    LISTED_CHARS,
    MISSED,
    OVERLAPS,
    REASON_CHARS,
    build_plan_card,
    build_schedule_cards,
    find_shown_plan,
    flow,
    list_schedules,
    open_book,
)
from planwarden.server.inbox.questions import CHANNEL
from planwarden.server.inbox.request import (
    BadForm,
    InboxRequest,
    NotFound,
    PageRoutes,
    Remark,
    Values,
    describe_refusal,
    http_status,
)
from planwarden.server.plans.plan_file import PlanFault, SavedPlan
from planwarden.server.schedules.cron import CronTimes, find_zone
from planwarden.server.schedules.schedule_commands import ScheduleRequest
from planwarden.server.views.escaping import capitalize, escape_text, shorten_text
from planwarden.server.views.forecast import Forecast
from planwarden.storage.schedules import ScheduleStore

SHOWN_SCHEDULES = 25
MAX_STEPS_SHOWN = 200
WHOLE_CHARS = 2_000
DOUBLE_S = 30.0
"""If a form comes again within this time, the button was pressed twice; after that, the person wants another run."""
NOT_STARTED = "The plan has changed since you looked at it. This page shows it as it is now; nothing was started."
NOT_ADDED = "The plan has changed since you looked at it. This page shows it as it is now; no schedule was added."
SHOWN_TIMES = 5
DEFAULT_ZONE = "UTC"

ROUTES = PageRoutes()


@ROUTES.page("/saved/{name}")
async def show_saved_plan(request: InboxRequest) -> Response:
    return await _render_plan(request, await find_shown_plan(request.service, request.path("name")))


@ROUTES.form("/saved/{name}/start")
async def start_saved_plan(request: InboxRequest) -> Response:
    """Start the run or its rehearsal, or only say what a run with these inputs would ask."""
    name, verdict = request.path("name"), request.read_verdict("start", "rehearse", "forecast")
    key = request.read_key(f"start {name} {verdict}")
    if verdict != "forecast" and (earlier_response := await _find_known(request, name, key)) is not None:
        return earlier_response
    plan = await find_shown_plan(request.service, name)
    if isinstance(plan, PlanFault):
        return await _render_plan(request, plan, Remark(NOT_STARTED, 409))
    if request.form_value("digest") != plan.digest:
        filled = keep_texts(plan.inputs, request.form_values())
        return await _render_plan(request, plan, Remark(NOT_STARTED, 409), filled=filled)
    form = fill_inputs_form(plan.inputs, request.form_values())
    if not form.is_usable:
        return await _render_plan(request, plan, build_fault_remark(form), filled=form)
    if verdict == "forecast":
        return await _render_plan(request, plan, filled=form, inputs=form.values)
    try:
        person = request.session.principal
        host, starter = f"{CHANNEL} ({person})", Starter(principal=person, channel=CHANNEL)
        start = StartOptions(
            requester=Requester(LOCAL, host=host, starter=starter),
            key=key,
            inputs=form.values,
            options={"rehearse": True} if verdict == "rehearse" else None,
        )
        execution = await request.service.run_plan(name, start, shown_digest=plan.digest)
    except (PlanChanged, UnknownPlan):
        now = await find_shown_plan(request.service, name)
        return await _render_plan(request, now, Remark(NOT_STARTED, 409), filled=form)
    except UsageError as error:
        text = f"{shorten_text(capitalize(error.message), WHOLE_CHARS)} Nothing was started."
        return await _render_plan(request, plan, Remark(text, http_status(error), "bad"), filled=form)
    return request.redirect(f"/executions/{execution.execution_id}")


async def _find_known(request: InboxRequest, name: str, key: str) -> Response | None:
    """Return the response to a form that has already started a run; None for any other form."""
    store = request.service.store
    start = await store.find_start(LOCAL, key)
    if start is None:
        return None
    header = await store.header(start.execution_id)
    if header is None or store.clock.now() - header.created_at <= DOUBLE_S:
        return request.redirect(f"/executions/{start.execution_id}")
    # A person who went back to an old page wants another run, and must not mistake the old run for the new one.
    text = "This form has started a run before; nothing more was started. The form below starts another."
    plan = await find_shown_plan(request.service, name)
    filled = keep_texts(plan.inputs, request.form_values()) if isinstance(plan, SavedPlan) else None
    return await _render_plan(request, plan, Remark(text, 409), filled=filled, started=start.execution_id)


def _describe_basis(plan: SavedPlan, inputs: Mapping[str, JsonValue] | None) -> str:
    """Return a sentence that says which inputs the forecast assumes."""
    if inputs is not None:
        return "For the inputs in the form, with the present tools and rules."
    if (plan.inputs or {}).get("required"):
        return "The inputs are not known yet. Press Forecast to use those in the form."
    return "For the default inputs. Press Forecast to use the inputs in the form."


async def _render_plan(
    request: InboxRequest,
    plan: SavedPlan | PlanFault,
    remark: Remark | None = None,
    *,
    filled: FilledForm | None = None,
    inputs: Mapping[str, JsonValue] | None = None,
    started: str | None = None,
) -> Response:
    """Return the page. The forecast is for `inputs`; `started` is the id of the run that an old form started."""
    name = request.path("name")
    schedules, fault = await list_schedules(request.service)
    of_plan = [schedule for schedule in schedules if schedule.plan == name]
    cards = await build_schedule_cards(request, of_plan, SHOWN_SCHEDULES)
    values: Values = {"started": started, "schedules": cards, "fault": fault, "reason_chars": REASON_CHARS}
    if isinstance(plan, PlanFault):
        return request.render_page("saved_broken.html", remark=remark, broken=plan, **values)
    return request.render_page(
        "saved_plan.html",
        takes_inputs=plan.inputs is not None,
        forecast=await _forecast_run(request.service, plan, inputs),
        basis=_describe_basis(plan, inputs),
        **_build_form_values(request, plan, remark, filled),
        **values,
    )


def _build_form_values(
    request: InboxRequest, plan: SavedPlan, remark: Remark | None, filled: FilledForm | None
) -> Values:
    """Return what both forms show: the plan, the inputs that are filled in so far, and the hidden fields."""
    return {
        "remark": remark,
        "plan": build_plan_card(plan, WHOLE_CHARS),
        "digest": plan.digest,
        "key": request.keep_key(remark, is_new=filled is None),
        "fields": build_input_fields(plan.inputs),
        "filled": filled,
    }


async def _forecast_run(service: Service, plan: SavedPlan, inputs: Mapping[str, JsonValue] | None) -> Values:
    """Return what a run with these inputs would do and ask; without inputs, what is known about every run."""
    values: Values = {"summary": "", "foreseen": None, "descriptions": {}, "fault": "", "most": MAX_STEPS_SHOWN}
    try:
        forecast = await service.forecast_plan(plan.document, inputs=inputs, principal=LOCAL)
    except (InvalidPlan, InvalidArguments, LimitExceeded, UnknownPlan) as error:
        if inputs is None and isinstance(error, InvalidArguments):
            return {**values, "summary": "It depends on the inputs: fill them in, and press Forecast."}
        return {**values, "fault": shorten_text(capitalize(error.message), WHOLE_CHARS)}
    descriptions = {str(step["id"]): shorten_text(flow(str(step["description"])), LISTED_CHARS) for step in plan.steps}
    return {**values, "summary": _summarize(forecast), "foreseen": forecast, "descriptions": descriptions}


def _summarize(forecast: Forecast) -> str:
    loops = sum(asking.for_all_rows is True for asking in forecast.asks)
    count = len(forecast.asks) - loops
    may_ask_more = bool(forecast.only_the_run_knows or forecast.models or forecast.unseen)
    call_parts = [f"{count_of(count, 'call')} will ask before {'it runs' if count == 1 else 'they run'}"]
    asks_for_rows = f"{count_of(loops, 'loop')} will ask once for all rows"
    summary = " and ".join([*(call_parts if count else []), *([asks_for_rows] if loops else [])])
    if summary:
        return f"{summary}, perhaps more." if may_ask_more else f"{summary}."
    return "Whether it asks anybody, only the run will know." if may_ask_more else "It will ask nobody."


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
        return _render_form(request, plan, Remark(NOT_ADDED, 409), filled=typed)
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
    return request.render_page(
        "saved_schedule.html",
        zone=DEFAULT_ZONE,
        overlaps=OVERLAPS,
        missing=MISSED,
        faults=faults or {},
        times=times,
        **_build_form_values(request, plan, remark, filled),
    )
