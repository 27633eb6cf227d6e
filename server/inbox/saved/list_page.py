"""The list of saved plans with their schedules, and the cards that pages show for a plan or an unusable file.

A file may be hostile, such as one from a repository: everything that it says is escaped and cut.
"""

from collections.abc import Sequence

from starlette.responses import Response

from planwarden.server.api.service import Service
from planwarden.server.inbox.request import InboxRequest, NotFound, PageRoutes, Values, build_token
from planwarden.server.inbox.saved.schedule_page import build_schedule_cards, list_schedules
from planwarden.server.plans.library import HOME
from planwarden.server.plans.plan_file import PlanFault, SavedPlan, is_plan_name
from planwarden.server.settings.configuration import PLAN_FOLDER
from planwarden.server.views.escaping import escape_text, shorten_text
from planwarden.server.views.fields import build_fields
from planwarden.storage.schedules import PlanSchedule

PAGE_SIZE = 25
SHOWN_SCHEDULES = 3
"""The most schedules of each plan that the list shows; the page of the plan shows more."""
MAX_FAULTS = 50
MAX_LOST = 25
VERSION_DIGITS = 12
LISTED_CHARS = 280
REASON_CHARS = 500
MAX_NAMED_INPUTS = 8

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
    hidden = [
        {"path": escape_text(str(entry.path)), "reason": f"not used: {escape_text(str(entry.by))} has its name"}
        for entry in catalogue.hidden
    ]
    broken = [*map(build_broken_plan, catalogue.faults), *hidden]
    values: Values = {
        "plans": [await _build_row(request, plan, by_plan.get(plan.name, [])) for plan in page_plans],
        "total": len(catalogue.plans),
        "after": after,
        "next_after": page_plans[-1].name if len(following) > len(page_plans) else "",
        "broken": broken[:MAX_FAULTS],
        "more_broken": max(0, len(broken) - MAX_FAULTS),
        "lost": await build_schedule_cards(request, lost[:MAX_LOST]),
        "more_lost": max(0, len(lost) - MAX_LOST),
        "folder": escape_text(str(request.site.settings.home / PLAN_FOLDER)),
        "fault": fault,
    }
    is_removed = bool(removed_id) and all(schedule.schedule_id != removed_id for schedule in schedules)

    async def build() -> Values:
        return {**values, "is_removed": is_removed}

    return await request.render_live("saved.html", "_saved_list.html", build_token(values), build)


async def _build_row(request: InboxRequest, plan: SavedPlan, schedules: Sequence[PlanSchedule]) -> Values:
    cards = await build_schedule_cards(request, schedules[:SHOWN_SCHEDULES])
    return {"card": build_plan_card(plan), "schedules": cards, "more_schedules": len(schedules) - len(cards)}


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


def build_broken_plan(fault: PlanFault) -> Values:
    """Return the escaped texts that a page shows for a file that is not a usable plan."""
    return {
        "name": fault.name if is_plan_name(fault.name) else "",
        "path": escape_text(str(fault.path)),
        "reason": shorten_text(fault.reason, REASON_CHARS),
    }


def flow(text: str) -> str:
    """Join a text from a file into one line: every run of whitespace, line breaks included, becomes one space."""
    return " ".join(text.split())
