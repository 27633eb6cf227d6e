"""The page of one schedule: when it ticks, what each tick did, and the buttons that pause, resume, run and remove it.

After a button the page says what that did. It says so only of what is so now: the address that it was sent to can be
opened by anybody, at any time.
"""

from collections.abc import Sequence

from starlette.responses import Response
from starlette.routing import BaseRoute

from planwarden.agent.common.errors import StaleRevision
from planwarden.server.inbox.answering import Remark
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.request import BadForm, InboxRequest, build_token, form_route, page_route
from planwarden.server.inbox.saved.schedule_view import (
    RunLine,
    ScheduleCard,
    build_schedule_card,
    open_book,
)
from planwarden.server.inbox.site import InboxSite
from planwarden.storage.ports.schedules import MAX_RECENT

SCHEDULES_PATH = f"{INBOX_PATH}/schedules"
MAX_VERSION_DIGITS = 18
STALE = "This schedule has changed since you looked at it. This page shows it as it is now; nothing more was started."


def build_schedule_routes(site: InboxSite) -> Sequence[BaseRoute]:
    where = f"{SCHEDULES_PATH}/{{schedule_id}}"
    return (
        page_route(site, where, show_schedule),
        page_route(site, f"{where}/runs", show_runs),
        form_route(site, f"{where}/pause", pause_schedule),
        form_route(site, f"{where}/resume", resume_schedule),
        form_route(site, f"{where}/run", run_schedule),
        form_route(site, f"{where}/remove", remove_schedule),
    )


async def show_schedule(request: InboxRequest) -> Response:
    card = await _load_card(request)
    return _render_schedule(request, card, _describe_done(request, card))


async def show_runs(request: InboxRequest) -> Response:
    """The part of the page that changes; 204 if the page already shows it so."""
    card = await _load_card(request)
    if request.http.query_params.get("seen") == build_token(card):
        return Response(status_code=204)
    return request.render_page("_schedule.html", schedule=card, seen=build_token(card))


async def pause_schedule(request: InboxRequest) -> Response:
    schedule_id = await _find_id(request)
    await open_book(request).pause(schedule_id)
    return request.redirect(f"/schedules/{schedule_id}?did=paused")


async def resume_schedule(request: InboxRequest) -> Response:
    schedule_id = await _find_id(request)
    await open_book(request).resume(schedule_id)
    return request.redirect(f"/schedules/{schedule_id}?did=resumed")


async def run_schedule(request: InboxRequest) -> Response:
    """Start a run as a tick at this moment would, once for the state that the page showed."""
    version = request.form_value("version")
    if not (version.isascii() and version.isdigit() and len(version) <= MAX_VERSION_DIGITS):
        raise BadForm
    schedule_id = await _find_id(request)
    try:
        record = await open_book(request).run_now(schedule_id, version=int(version))
    except StaleRevision:
        return _render_schedule(request, await _load_card(request), Remark(text=STALE), status=409)
    did = "did=queued" if record is None else f"did=ran&tick={record.tick_at}"
    return request.redirect(f"/schedules/{schedule_id}?{did}")


async def remove_schedule(request: InboxRequest) -> Response:
    schedule_id = await _find_id(request)
    await open_book(request).remove(schedule_id)
    return request.redirect(f"/saved?removed={schedule_id}")


async def _find_id(request: InboxRequest) -> str:
    return (await open_book(request).find(request.http.path_params["schedule_id"])).schedule_id


async def _load_card(request: InboxRequest) -> ScheduleCard:
    book = open_book(request)
    schedule = await book.find(request.http.path_params["schedule_id"])
    return await build_schedule_card(request, book, schedule, MAX_RECENT)


def _render_schedule(
    request: InboxRequest, card: ScheduleCard, remark: Remark | None = None, *, status: int = 200
) -> Response:
    return request.render_page("schedule.html", status=status, schedule=card, remark=remark, seen=build_token(card))


def _describe_done(request: InboxRequest, card: ScheduleCard) -> Remark | None:
    """What the button did that led here; None if that is not how the schedule is now."""
    asked = request.http.query_params
    did = asked.get("did")
    if did == "paused" and card.paused_at is not None:
        return Remark(text="Paused: it starts nothing until you resume it. Runs that it started go on.", tone="plain")
    if did == "resumed" and card.paused_at is None:
        return Remark(text="Resumed: it ticks again at the times below.", tone="good")
    if did == "added" and card.paused_at is None:
        return Remark(text="Added: it starts the plan at the times below, while a planwarden server runs.", tone="good")
    if did == "queued" and card.queued:
        return Remark(text="The last run is not finished; this one starts after it.", tone="plain")
    if did == "ran":
        ran = next((run for run in card.runs if str(int(run.at.timestamp())) == asked.get("tick")), None)
        return None if ran is None else _describe_run(ran)
    return None


def _describe_run(run: RunLine) -> Remark:
    if run.execution_id is None:
        return Remark(text=f"Nothing was started: {run.reason or run.words}.", tone="bad")
    return Remark(text=f"Started: the run {run.words}.", tone="good")
