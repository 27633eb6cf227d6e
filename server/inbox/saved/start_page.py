"""The page of one saved plan: its inputs as a form, the forecast of a run, and the buttons that start one.

The form carries the version that the page showed and a key of its own. The version is compared again when the run is
created, so a file that has changed since then starts nothing. The key is stored with the run, so the same form sent
twice starts one run, also in two processes.
"""

from collections.abc import Mapping

from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.common.errors import PlanChanged, UnknownPlan, UsageError
from planwarden.agent.core.execution.events import Starter
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.inbox.decision import CHANNEL
from planwarden.server.inbox.forms import FilledForm
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes, Remark, capitalize, http_status
from planwarden.server.inbox.saved.input_form import (
    build_fault_remark,
    build_input_fields,
    keep_texts,
    read_given_inputs,
)
from planwarden.server.inbox.saved.plan_view import (
    WHOLE_CHARS,
    BrokenPlan,
    build_plan_card,
    find_shown_plan,
    forecast_run,
)
from planwarden.server.inbox.saved.schedule_view import build_schedule_card, list_schedules, open_book
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.views.escaping import shorten_text

SHOWN_SCHEDULES = 25
DOUBLE_S = 30.0
"""A form that comes again within so many seconds was pressed twice; later, the person wants another run."""
MAX_PERSON_CHARS = 100
CHANGED = "The plan has changed since you looked at it. This page shows it as it is now; nothing was started."


ROUTES = PageRoutes()


@ROUTES.page("/saved/{name}")
async def show_saved_plan(request: InboxRequest) -> Response:
    plan = await find_shown_plan(request.service, request.path("name"))
    return await _render_plan(request, plan)


@ROUTES.form("/saved/{name}/start")
async def start_saved_plan(request: InboxRequest) -> Response:
    """Start the run or its rehearsal, or only say what a run with these inputs would ask."""
    name, verdict = request.path("name"), request.form_value("decision")
    if verdict not in ("start", "rehearse", "forecast"):
        raise BadForm
    key = request.read_key(f"start {name} {verdict}")
    if verdict != "forecast" and (earlier_response := await _find_known(request, name, key)) is not None:
        return earlier_response
    plan = await find_shown_plan(request.service, name)
    if isinstance(plan, BrokenPlan):
        return await _render_plan(request, plan, Remark(text=CHANGED), status=409)
    fields, texts = build_input_fields(plan.inputs), request.form_values()
    if request.form_value("digest") != plan.digest:
        return await _render_plan(request, plan, Remark(text=CHANGED), filled=keep_texts(fields, texts), status=409)
    form = read_given_inputs(plan.inputs, fields, texts)
    if not form.is_usable:
        return await _render_plan(request, plan, build_fault_remark(form), filled=form.filled, status=422)
    if verdict == "forecast":
        return await _render_plan(request, plan, filled=form.filled, inputs=form.values)
    try:
        person = request.session.principal
        host, starter = f"{CHANNEL} ({person[:MAX_PERSON_CHARS]})", Starter(principal=person, channel=CHANNEL)
        start = StartOptions(
            requester=Requester(LOCAL, host=host, starter=starter),
            key=key,
            inputs=form.values,
            options={"rehearse": True} if verdict == "rehearse" else None,
        )
        execution = await request.service.run_plan(name, start, shown_digest=plan.digest)
    except (PlanChanged, UnknownPlan):
        now = await find_shown_plan(request.service, name)
        return await _render_plan(request, now, Remark(text=CHANGED), filled=form.filled, status=409)
    except UsageError as error:
        remark = Remark(text=f"{shorten_text(capitalize(error.message), WHOLE_CHARS)} Nothing was started.", tone="bad")
        return await _render_plan(request, plan, remark, filled=form.filled, status=http_status(error))
    return request.redirect(f"/executions/{execution.execution_id}")


async def _find_known(request: InboxRequest, name: str, key: str) -> Response | None:
    """Return the answer to a form that has started a run before; None for every other one."""
    store = request.service.store
    start = await store.find_start(LOCAL, key)
    if start is None:
        return None
    header = await store.header(start.execution_id)
    if header is None or store.clock.now() - header.created_at <= DOUBLE_S:
        return request.redirect(f"/executions/{start.execution_id}")
    # Who went back to an old page wants another run, and must not take the old one for it.
    remark = Remark(text="This form has started a run before; nothing more was started. The form below starts another.")
    plan = await find_shown_plan(request.service, name)
    filled = None
    if isinstance(plan, SavedPlan):
        filled = keep_texts(build_input_fields(plan.inputs), request.form_values())
    return await _render_plan(request, plan, remark, filled=filled, status=409, started=start.execution_id)


def _describe_basis(plan: SavedPlan, inputs: Mapping[str, JsonValue] | None) -> str:
    """Which inputs the forecast is for."""
    if inputs is not None:
        return "With the inputs of the form, as tools and rules are now."
    if (plan.inputs or {}).get("required"):
        return "Before the inputs are known. Forecast looks again, with those of the form."
    return "With the defaults of the form. Forecast looks again, with what it holds."


async def _render_plan(
    request: InboxRequest,
    plan: SavedPlan | BrokenPlan,
    remark: Remark | None = None,
    *,
    filled: FilledForm | None = None,
    inputs: Mapping[str, JsonValue] | None = None,
    status: int = 200,
    started: str | None = None,
) -> Response:
    """`inputs` are those that the forecast is for; `started` is the run that an old form has started."""
    name = request.path("name")
    schedules, fault = await list_schedules(request.service)
    of_plan = [schedule for schedule in schedules if schedule.plan == name]
    book = open_book(request) if of_plan else None
    cards = [
        await build_schedule_card(request, book, schedule, 1)
        for schedule in of_plan[:SHOWN_SCHEDULES]
        if book is not None
    ]
    values: dict[str, object] = {
        "remark": remark,
        "started": started,
        "schedules": cards,
        "more_schedules": len(of_plan) - len(cards),
        "fault": fault,
    }
    if isinstance(plan, BrokenPlan):
        return request.render_page("saved_broken.html", status=status, broken=plan, **values)
    return request.render_page(
        "saved_plan.html",
        status=status,
        plan=build_plan_card(plan, WHOLE_CHARS),
        digest=plan.digest,
        key=request.new_key() if filled is None or status == 409 else request.form_value("key"),
        fields=build_input_fields(plan.inputs),
        filled=filled,
        takes_inputs=plan.inputs is not None,
        forecast=await forecast_run(request.service, plan, inputs),
        basis=_describe_basis(plan, inputs),
        **values,
    )
