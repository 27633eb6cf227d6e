"""The list of saved plans with their schedules, and the page of one schedule, with the buttons that pause, resume, run
and remove it.

A file may be hostile, such as one from a repository: everything that it says is escaped and cut. The page of a schedule
says what the last button did, but only while this is true: anybody with a session can open the address later.
"""

from collections.abc import Sequence

from starlette.responses import Response

from planwarden.agent.common.errors import PlanwardenError, StaleRevision, StoreError
from planwarden.agent.ports.store import Store
from planwarden.server.api.service import Service
from planwarden.server.inbox.questions import CHANNEL
from planwarden.server.inbox.request import BadForm, InboxRequest, NotFound, PageRoutes, Remark, Values, build_token
from planwarden.server.plans.library import HOME
from planwarden.server.plans.plan_file import PlanFault, SavedPlan, is_plan_name
from planwarden.server.schedules.schedule_commands import ScheduleBook
from planwarden.server.settings.configuration import PLAN_FOLDER
from planwarden.server.views.escaping import capitalize, escape_text, shorten_text
from planwarden.server.views.fields import build_fields
from planwarden.server.views.listing import TickView
from planwarden.server.views.status_words import WORDS
from planwarden.storage.schedules import MAX_RECENT, MissedTicks, Overlap, PlanSchedule, ScheduleStore

PAGE_SIZE = 25
SHOWN_SCHEDULES = 3
"""The most schedules of each plan that the list shows; the page of the plan shows more."""
MAX_FAULTS = 50
MAX_LOST = 25
VERSION_DIGITS = 12
LISTED_CHARS = 280
REASON_CHARS = 500
MAX_NAMED_INPUTS = 8
MAX_VERSION_DIGITS = 18
STALE = "This schedule has changed since you looked at it. This page shows it as it is now; nothing more was started."
OVERLAPS: dict[Overlap, str] = {"skip": "start nothing", "queue": "wait until it has ended"}
MISSED: dict[MissedTicks, str] = {"latest": "start once, as soon as one runs", "none": "leave it out"}

_PAUSED = "Paused: it starts nothing until you resume it. Runs that it started go on."
_ADDED = "Added: it starts the plan at the times below, while a planwarden server runs."
_DONE = {
    ("paused", True): Remark(_PAUSED, tone="plain"),
    ("resumed", False): Remark("Resumed: it ticks again at the times below.", tone="good"),
    ("added", False): Remark(_ADDED, tone="good"),
}
"""The remark on what a button did, by the address's `did` and by whether the schedule is paused now."""

ROUTES = PageRoutes()


@ROUTES.page("/saved")
async def show_saved_plans(request: InboxRequest) -> Response:
    catalogue = await request.service.look_at_plans()
    schedules, fault = await list_schedules(request.service)
    by_plan: dict[str, list[PlanSchedule]] = {}
    for schedule in schedules:
        by_plan.setdefault(schedule.plan, []).append(schedule)
    after, removed_id = request.query("after"), request.query("removed")
    following = [plan for plan in catalogue.plans if plan.name > after]
    page_plans = following[:PAGE_SIZE]
    lost = [item for name, group in by_plan.items() if catalogue.get(name) is None for item in group]
    broken = [(str(fault.path), shorten_text(fault.reason, REASON_CHARS)) for fault in catalogue.faults]
    broken += [(str(file.path), f"not used: {escape_text(str(file.by))} has its name") for file in catalogue.hidden]
    values: Values = {
        "plans": [
            (build_plan_card(plan), await build_schedule_cards(request, by_plan.get(plan.name, []), SHOWN_SCHEDULES))
            for plan in page_plans
        ],
        "total": len(catalogue.plans),
        "after": after,
        "next_after": page_plans[-1].name if len(following) > len(page_plans) else "",
        "broken": broken[:MAX_FAULTS],
        "more_broken": max(0, len(broken) - MAX_FAULTS),
        "lost": await build_schedule_cards(request, lost, MAX_LOST),
        "folder": escape_text(str(request.site.settings.home / PLAN_FOLDER)),
        "fault": fault,
    }
    is_removed = bool(removed_id) and all(schedule.schedule_id != removed_id for schedule in schedules)

    async def build() -> Values:
        return {**values, "is_removed": is_removed}

    return await request.render_live("saved.html", "_saved_list.html", build_token(values), build)


async def find_shown_plan(service: Service, name: str) -> SavedPlan | PlanFault:
    """Return the plan as it is now, or why its file cannot be used.

    Raises:
        NotFound: there is no file of that name.
    """
    catalogue = await service.look_at_plans()
    plan = catalogue.get(name) or catalogue.get_fault(name)
    if plan is None or (isinstance(plan, PlanFault) and not is_plan_name(name)):
        raise NotFound("there is no saved plan of this name; it may have been renamed or removed")
    return plan


def build_plan_card(plan: SavedPlan, limit: int = LISTED_CHARS) -> Values:
    """Return the escaped texts that a page shows for the plan; cut its description to `limit` characters."""
    names = [field.name for field in build_fields(plan.inputs)]
    labels = [shorten_text(name, 64) for name in names[:MAX_NAMED_INPUTS]]
    return {
        "name": plan.name,
        "title": shorten_text(flow(plan.title or ""), 200),
        "description": shorten_text(flow(plan.description or ""), limit),
        "source": "your plans" if plan.source == HOME else shorten_text(plan.source, 200),
        # Only the operator can write to the home folder.
        "is_own": plan.source == HOME,
        "path": escape_text(str(plan.path)),
        "version": plan.digest[:VERSION_DIGITS],
        "inputs": [*labels, f"{len(names) - len(labels)} more"] if len(names) > len(labels) else labels,
    }


def flow(text: str) -> str:
    """Join a text from a file into one line: every run of whitespace, line breaks included, becomes one space."""
    return " ".join(text.split())


@ROUTES.page("/schedules/{schedule_id}")
async def show_schedule(request: InboxRequest) -> Response:
    return await _render_schedule(request)


@ROUTES.form("/schedules/{schedule_id}/pause")
async def pause_schedule(request: InboxRequest) -> Response:
    book, schedule = await _find(request)
    await book.pause(schedule.schedule_id)
    return request.redirect(f"/schedules/{schedule.schedule_id}?did=paused")


@ROUTES.form("/schedules/{schedule_id}/resume")
async def resume_schedule(request: InboxRequest) -> Response:
    book, schedule = await _find(request)
    await book.resume(schedule.schedule_id)
    return request.redirect(f"/schedules/{schedule.schedule_id}?did=resumed")


@ROUTES.form("/schedules/{schedule_id}/run")
async def run_schedule(request: InboxRequest) -> Response:
    """Start a run as a tick at this moment would, but only if the schedule has not changed since the page showed it."""
    version = request.form_value("version")
    if not (version.isascii() and version.isdigit() and len(version) <= MAX_VERSION_DIGITS):
        raise BadForm
    book, schedule = await _find(request)
    try:
        record = await book.run_now(schedule.schedule_id, version=int(version))
    except StaleRevision:
        return await _render_schedule(request, Remark(STALE, 409))
    did = "did=queued" if record is None else f"did=ran&tick={record.tick_at}"
    return request.redirect(f"/schedules/{schedule.schedule_id}?{did}")


@ROUTES.form("/schedules/{schedule_id}/remove")
async def remove_schedule(request: InboxRequest) -> Response:
    book, schedule = await _find(request)
    await book.remove(schedule.schedule_id)
    return request.redirect(f"/saved?removed={schedule.schedule_id}")


async def _find(request: InboxRequest) -> tuple[ScheduleBook, PlanSchedule]:
    book = open_book(request)
    return book, await book.find(request.path("schedule_id"))


async def _render_schedule(request: InboxRequest, remark: Remark | None = None) -> Response:
    card = await _build_card(request, *await _find(request), MAX_RECENT)

    async def build() -> Values:
        return {"schedule": card, "remark": remark or _describe_done(request, card)}

    return await request.render_live("schedule.html", "_schedule.html", build_token(card), build)


def _describe_done(request: InboxRequest, card: Values) -> Remark | None:
    """Return what the button that led to this address did; None if that is no longer true of the schedule."""
    did, is_paused = request.query("did"), card["stored"].paused_at is not None
    if did == "queued" and card["stored"].queued:
        return Remark("The last run is not finished; this one starts after it.", tone="plain")
    if did != "ran":
        return _DONE.get((did, is_paused))
    run = next((run for run in card["runs"] if str(int(run["at"].timestamp())) == request.query("tick")), None)
    return None if run is None else Remark(run["outcome"], tone=run["tone"])


def open_book(request: InboxRequest) -> ScheduleBook:
    """Return the store's schedules, for this session's person."""
    service = request.service
    return ScheduleBook(service.store, service, request.session.principal, channel=CHANNEL)


async def list_schedules(service: Service) -> tuple[tuple[PlanSchedule, ...], str]:
    """Return all schedules, oldest first, and an empty text; if reading fails, no schedules and the escaped fault."""
    try:
        return await ScheduleStore(service.store).all(), ""
    except StoreError as error:
        return (), escape_text(error.message)


async def build_schedule_cards(request: InboxRequest, schedules: Sequence[PlanSchedule], limit: int) -> Values:
    """Return what a list shows of at most `limit` schedules, with the newest tick of each, and how many are left."""
    cards = [await _build_card(request, open_book(request), schedule, 1) for schedule in schedules[:limit]]
    return {"cards": cards, "more": len(schedules) - len(cards)}


async def _build_card(request: InboxRequest, book: ScheduleBook, schedule: PlanSchedule, shown_runs: int) -> Values:
    """Return the schedule as it is stored, its next ticks, and its last `shown_runs` ticks; if none of those started a
    run, add the newest tick that did."""
    card: Values = {
        "stored": schedule,
        "overlap": OVERLAPS[schedule.overlap],
        "missed": MISSED[schedule.missed],
        "next_ticks": (),
        "runs": (),
        "fault": "",
    }
    try:
        view = book.build_view(schedule)
    except PlanwardenError as error:
        # This machine does not know the zone, so the schedule never ticks here.
        return {**card, "fault": escape_text(error.message)}
    ticks = list(view.recent[:shown_runs])
    if all(tick.execution_id is None for tick in ticks):
        ticks += [tick for tick in view.recent[shown_runs:] if tick.execution_id is not None][:1]
    runs = [await _build_run_line(request.service.store, tick) for tick in ticks]
    return {**card, "next_ticks": view.next_ticks, "runs": runs}


async def _build_run_line(store: Store, tick: TickView) -> Values:
    """Return the line for a tick: its outcome, and the status of the run that it started."""
    line: Values = {"at": tick.tick_at, "reason": "", "execution_id": None}
    if tick.execution_id is None:
        words, reason = WORDS["tick"][tick.outcome], escape_text(tick.reason or "")
        outcome = f"Nothing was started: {reason or words.word}."
        return {**line, "words": words.word, "tone": words.tone, "reason": reason, "outcome": outcome}
    header = await store.header(tick.execution_id)
    if header is None:
        text = "started; its run was deleted since"
        return {**line, "words": text, "tone": "dim", "outcome": f"{capitalize(text)}."}
    words = WORDS["execution"][header.status]
    outcome = f"Started: it {words.phrase}."
    return {**line, "words": words.word, "tone": words.tone, "outcome": outcome, "execution_id": tick.execution_id}
