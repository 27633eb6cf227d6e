"""The page of one schedule: when it ticks, what each tick did, and the buttons that pause, resume, run and remove it.

After a button the page says what that did. It says so only of what is so now: the address that it was sent to can be
opened by anybody, at any time.
"""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from planwarden.agent.common.errors import StaleRevision
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes, Remark, Values, build_token
from planwarden.server.inbox.saved.schedule_view import RunLine, ScheduleCard, build_schedule_card, open_book
from planwarden.server.schedules.schedule_commands import ScheduleBook
from planwarden.storage.schedules import MAX_RECENT, PlanSchedule

MAX_VERSION_DIGITS = 18
STALE = "This schedule has changed since you looked at it. This page shows it as it is now; nothing more was started."


ROUTES = PageRoutes()


@ROUTES.page("/schedules/{schedule_id}")
async def show_schedule(request: InboxRequest) -> Response:
    return await _render_schedule(request)


@ROUTES.form("/schedules/{schedule_id}/pause")
async def pause_schedule(request: InboxRequest) -> Response:
    return await _change(request, ScheduleBook.pause, "?did=paused")


@ROUTES.form("/schedules/{schedule_id}/resume")
async def resume_schedule(request: InboxRequest) -> Response:
    return await _change(request, ScheduleBook.resume, "?did=resumed")


@ROUTES.form("/schedules/{schedule_id}/run")
async def run_schedule(request: InboxRequest) -> Response:
    """Start a run as a tick at this moment would, once for the state that the page showed."""
    version = request.form_value("version")
    if not (version.isascii() and version.isdigit() and len(version) <= MAX_VERSION_DIGITS):
        raise BadForm
    book, schedule = await _find(request)
    try:
        record = await book.run_now(schedule.schedule_id, version=int(version))
    except StaleRevision:
        return await _render_schedule(request, Remark(text=STALE), status=409)
    did = "did=queued" if record is None else f"did=ran&tick={record.tick_at}"
    return request.redirect(f"/schedules/{schedule.schedule_id}?{did}")


@ROUTES.form("/schedules/{schedule_id}/remove")
async def remove_schedule(request: InboxRequest) -> Response:
    book, schedule = await _find(request)
    await book.remove(schedule.schedule_id)
    return request.redirect(f"/saved?removed={schedule.schedule_id}")


async def _change(
    request: InboxRequest, change: Callable[[ScheduleBook, str], Awaitable[object]], outcome: str
) -> Response:
    book, schedule = await _find(request)
    await change(book, schedule.schedule_id)
    return request.redirect(f"/schedules/{schedule.schedule_id}{outcome}")


async def _find(request: InboxRequest) -> tuple[ScheduleBook, PlanSchedule]:
    book = open_book(request)
    return book, await book.find(request.path("schedule_id"))


async def _render_schedule(request: InboxRequest, remark: Remark | None = None, *, status: int = 200) -> Response:
    card = await build_schedule_card(request, *await _find(request), MAX_RECENT)

    async def build() -> Values:
        return {"status": status, "schedule": card, "remark": remark or _describe_done(request, card)}

    return await request.render_live("schedule.html", "_schedule.html", build_token(card), build)


def _describe_done(request: InboxRequest, card: ScheduleCard) -> Remark | None:
    """Return what the button did that led here; None if that is not how the schedule is now."""
    did = request.query("did")
    if did == "paused" and card.paused_at is not None:
        return Remark(text="Paused: it starts nothing until you resume it. Runs that it started go on.", tone="plain")
    if did == "resumed" and card.paused_at is None:
        return Remark(text="Resumed: it ticks again at the times below.", tone="good")
    if did == "added" and card.paused_at is None:
        return Remark(text="Added: it starts the plan at the times below, while a planwarden server runs.", tone="good")
    if did == "queued" and card.queued:
        return Remark(text="The last run is not finished; this one starts after it.", tone="plain")
    if did == "ran":
        ran = next((run for run in card.runs if str(int(run.at.timestamp())) == request.query("tick")), None)
        return None if ran is None else _describe_run(ran)
    return None


def _describe_run(run: RunLine) -> Remark:
    if run.execution_id is None:
        return Remark(text=f"Nothing was started: {run.reason or run.words}.", tone="bad")
    return Remark(text=f"Started: the run {run.words}.", tone="good")
