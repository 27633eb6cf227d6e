"""The list of saved plans, with the schedules of each, and the files that cannot be used."""

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from planwarden.server.inbox.request import InboxRequest, PageRoutes, Values, build_token
from planwarden.server.inbox.saved.plan_view import (
    BrokenPlan,
    SavedPlanCard,
    build_broken_plan,
    build_plan_card,
)
from planwarden.server.inbox.saved.schedule_view import (
    ScheduleCard,
    build_schedule_card,
    list_schedules,
    open_book,
)
from planwarden.server.plans.folders import PlanCatalogue
from planwarden.server.settings.configuration import PLAN_FOLDER
from planwarden.server.views.escaping import escape_text
from planwarden.storage.schedules import PlanSchedule

PAGE_SIZE = 25
SHOWN_SCHEDULES = 3
"""Of each plan in the list; its own page shows more."""
MAX_FAULTS = 50
MAX_LOST = 25


class ListedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the list."""

    card: SavedPlanCard
    schedules: tuple[ScheduleCard, ...]
    more_schedules: int


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
    broken = list_broken(catalogue)
    values: Values = {
        "plans": [await _build_row(request, build_plan_card(plan), by_plan.get(plan.name, [])) for plan in page_plans],
        "total": len(catalogue.plans),
        "after": after,
        "next_after": page_plans[-1].name if len(following) > len(page_plans) else "",
        "broken": broken[:MAX_FAULTS],
        "more_broken": max(0, len(broken) - MAX_FAULTS),
        "lost": await _build_cards(request, lost[:MAX_LOST]),
        "more_lost": max(0, len(lost) - MAX_LOST),
        "folder": escape_text(str(request.site.settings.home / PLAN_FOLDER)),
        "fault": fault,
    }
    is_removed = bool(removed_id) and all(schedule.schedule_id != removed_id for schedule in schedules)

    async def build() -> Values:
        return {**values, "is_removed": is_removed}

    return await request.render_live("saved.html", "_saved_list.html", build_token(values), build)


def list_broken(catalogue: PlanCatalogue) -> list[BrokenPlan]:
    """Return the files that no plan comes from: what is wrong with them, or which file has their name."""
    hidden = (
        BrokenPlan(
            name="", path=escape_text(str(entry.path)), reason=f"not used: {escape_text(str(entry.by))} has its name"
        )
        for entry in catalogue.hidden
    )
    return [*map(build_broken_plan, catalogue.faults), *hidden]


async def _build_row(request: InboxRequest, card: SavedPlanCard, schedules: Sequence[PlanSchedule]) -> ListedPlan:
    first_schedules = schedules[:SHOWN_SCHEDULES]
    return ListedPlan(
        card=card,
        schedules=tuple(await _build_cards(request, first_schedules)),
        more_schedules=len(schedules) - len(first_schedules),
    )


async def _build_cards(request: InboxRequest, schedules: Sequence[PlanSchedule]) -> list[ScheduleCard]:
    if not schedules:
        return []
    book = open_book(request)
    return [await build_schedule_card(request, book, schedule, 1) for schedule in schedules]
