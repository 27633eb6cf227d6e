"""The page of plans: every execution that runs or ran, the newest activity first, with search, filters and pages.

The inbox belongs to the operator, so it lists the executions of every principal. No log is read for a list.
"""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlencode

import msgspec
from msgspec.structs import asdict
from starlette.responses import Response
from starlette.routing import BaseRoute

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.synopsis import MAX_WORD_CHARS, NAME_CHARS
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Store
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.question_view import format_age
from planwarden.server.inbox.request import BadForm, InboxRequest, build_token, page_route
from planwarden.server.inbox.site import InboxSite
from planwarden.server.views.facts import cut_text, escape_text
from planwarden.server.views.instants import to_utc
from planwarden.server.views.listing import ExecutionLine, build_line
from planwarden.server.views.states import FORMER, STATUSES
from planwarden.server.views.voices import format_host
from planwarden.storage.ports.schedules import HasSchedules

PAGE_SIZE = 25
TITLE_CHARS = 160
MAX_OPTIONS = 500
"""Of one list to choose from; more are found by writing their name into the address."""
MAX_NEXT_RUNS = 3


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """One execution, with every text escaped and cut."""

    execution_id: str
    state: str
    """One of the states of the filter."""
    words: str
    """The state in words."""
    title: str
    is_quoted: bool
    progress: str
    saved_plan: str
    plan_query: str
    """Leads to the runs of the same saved plan."""
    host: str
    question: str | None
    fault: str
    changed_at: datetime
    age: str


class NextRun(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule starts its plan next."""

    plan: str
    plan_query: str
    at: datetime


class PlanFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What the address of the page asks for, as it was written."""

    q: str = ""
    state: str = ""
    host: str = ""
    tool: str = ""
    plan: str = ""

    @property
    def is_empty(self) -> bool:
        return not any(asdict(self).values())

    def to_query(self) -> str:
        """The part of the address that asks for the same again; empty or ending with `&`."""
        chosen = {name: value for name, value in asdict(self).items() if value}
        return f"{urlencode(chosen)}&" if chosen else ""


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What the filter offers: each value with how it is shown."""

    states: tuple[tuple[str, str], ...]
    tools: tuple[tuple[str, str], ...]
    hosts: tuple[tuple[str, str], ...]


def build_plan_list_routes(site: InboxSite) -> Sequence[BaseRoute]:
    where = f"{INBOX_PATH}/plans"
    return (page_route(site, where, show_plans), page_route(site, f"{where}/list", show_plans_part))


async def show_plans(request: InboxRequest) -> Response:
    wanted = _read_filter(request)
    store, tools = request.service.engine.store, request.service.engine.tools
    hosts = (*await store.list_hosts(), wanted.host)
    names = (*(definition.name for definition in tools.definitions()), wanted.tool)
    choices = Choices(
        states=tuple((state, state) for state in STATUSES), tools=_build_options(names), hosts=_build_options(hosts)
    )
    return await _render(request, "plans.html", wanted, choices=choices)


async def show_plans_part(request: InboxRequest) -> Response:
    """The list without the page around it, for the page's refresh; 204 if the page already shows this list."""
    wanted = _read_filter(request)
    return await _render(request, "_plans.html", wanted, seen=request.http.query_params.get("seen"))


async def _render(
    request: InboxRequest,
    template: str,
    wanted: PlanFilter,
    *,
    seen: str | None = None,
    choices: Choices | None = None,
) -> Response:
    store, after = request.service.engine.store, request.http.query_params.get("after") or None
    listed = await store.list_executions(
        ExecutionFilter(
            search=wanted.q,
            status=STATUSES[wanted.state] if wanted.state else None,
            host=wanted.host or None,
            tool=wanted.tool or None,
            saved_plan=wanted.plan or None,
        ),
        limit=PAGE_SIZE,
        cursor=after,
    )
    next_runs = await _list_next_runs(store) if wanted.is_empty and after is None else ()
    # The time that passes is no news.
    token = build_token((listed, next_runs))
    if seen == token:
        return Response(status_code=204)
    now = store.clock.now()
    return request.render_page(
        template,
        rows=[_build_row(build_line(row), now) for row in listed.rows],
        next_cursor=listed.next_cursor,
        next_runs=next_runs,
        wanted=wanted,
        plan=_shorten(wanted.plan),
        query=wanted.to_query(),
        after=after,
        seen=token,
        choices=choices,
    )


def _read_filter(request: InboxRequest) -> PlanFilter:
    """Raises `BadForm` for a state that there is not."""
    given = request.http.query_params
    state = given.get("state", "")
    wanted = PlanFilter(
        q=given.get("q", "").strip()[:MAX_WORD_CHARS],
        state=FORMER.get(state, state),
        host=given.get("host", "")[:NAME_CHARS],
        tool=given.get("tool", "")[:NAME_CHARS],
        plan=given.get("plan", "")[:NAME_CHARS],
    )
    if wanted.state and wanted.state not in STATUSES:
        raise BadForm(f"there is no such state; choose one of {', '.join(STATUSES)}")
    return wanted


def _build_options(values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Each value once, sorted, with how it is shown."""
    return tuple((value, _shorten(value)) for value in sorted(set(filter(None, values)))[:MAX_OPTIONS])


def _build_row(line: ExecutionLine, now: float) -> PlanRow:
    return PlanRow(
        execution_id=line.execution_id,
        state=line.state,
        words=line.describe_state(),
        title=_shorten(line.title),
        is_quoted=line.is_quoted,
        progress=line.describe_progress(),
        saved_plan=_shorten(line.saved_plan or ""),
        plan_query=urlencode({"plan": line.saved_plan or ""}),
        host=format_host(line.host or ""),
        question=line.suspension_id,
        fault=escape_text(line.fault or ""),
        changed_at=line.changed_at,
        age=format_age(now - line.changed_at.timestamp()),
    )


def _shorten(text: str) -> str:
    shown = escape_text(text)
    return shown if len(shown) <= TITLE_CHARS else f"{cut_text(shown, TITLE_CHARS)}…"


async def _list_next_runs(store: Store) -> tuple[NextRun, ...]:
    """The next ones, earliest first. Damaged schedules must not hide the plans: their own page says what is wrong."""
    if not isinstance(store, HasSchedules):
        return ()
    try:
        schedules = await store.schedules.all()
    except StoreError:
        return ()
    waiting = sorted((found.next_at, found.plan) for found in schedules if found.paused_at is None)
    return tuple(
        NextRun(plan=_shorten(plan), plan_query=urlencode({"plan": plan}), at=to_utc(next_at))
        for next_at, plan in waiting[:MAX_NEXT_RUNS]
    )
