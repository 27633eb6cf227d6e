"""The page of plans: every execution that runs or ran, the newest activity first, with search, filters and pages.

The inbox belongs to the operator, so it lists the executions of every principal. No log is read for a list.
"""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlencode

import msgspec
from msgspec.structs import asdict
from starlette.responses import Response

from planwarden.agent.core.execution.synopsis import MAX_WORD_CHARS, NAME_CHARS
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes, Values, build_token
from planwarden.server.inbox.saved.schedule_view import list_schedules
from planwarden.server.views.card import format_host
from planwarden.server.views.escaping import escape_text, shorten_text
from planwarden.server.views.instants import format_age, to_utc
from planwarden.server.views.listing import ExecutionLine, build_line
from planwarden.server.views.status_words import FORMER, STATUSES, Tone

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
    tone: Tone
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
        """Return the part of the address that asks for the same again; empty or ending with `&`."""
        parameters = {name: value for name, value in asdict(self).items() if value}
        return f"{urlencode(parameters)}&" if parameters else ""


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What the filter offers: each value with how it is shown."""

    states: tuple[tuple[str, str], ...]
    tools: tuple[tuple[str, str], ...]
    hosts: tuple[tuple[str, str], ...]


ROUTES = PageRoutes()


@ROUTES.page("/plans")
async def show_plans(request: InboxRequest) -> Response:
    filters, after = _read_filter(request), request.query("after") or None
    store = request.service.store
    listed = await store.list_executions(
        ExecutionFilter(
            search=filters.q,
            status=STATUSES[filters.state] if filters.state else None,
            host=filters.host or None,
            tool=filters.tool or None,
            saved_plan=filters.plan or None,
        ),
        limit=PAGE_SIZE,
        cursor=after,
    )
    next_runs = await _list_next_runs(request) if filters.is_empty and after is None else ()

    async def build() -> Values:
        now = store.clock.now()
        return {
            "rows": [_build_row(build_line(row), now) for row in listed.rows],
            "next_cursor": listed.next_cursor,
            "next_runs": next_runs,
            "wanted": filters,
            "plan": shorten_text(filters.plan, TITLE_CHARS),
            "query": filters.to_query(),
            "after": after,
            "choices": None if request.is_refresh else await _build_choices(request, filters),
        }

    # The page need not change because time passes.
    return await request.render_live("plans.html", "_plans.html", build_token((listed, next_runs)), build)


async def _build_choices(request: InboxRequest, filters: PlanFilter) -> Choices:
    store, tools = request.service.store, request.service.tools
    hosts = (*await store.list_hosts(), filters.host)
    names = (*(definition.name for definition in tools.definitions()), filters.tool)
    return Choices(
        states=tuple((state, state) for state in STATUSES), tools=_build_options(names), hosts=_build_options(hosts)
    )


def _read_filter(request: InboxRequest) -> PlanFilter:
    """Raise `BadForm` for a state that there is not."""
    state = request.query("state")
    filters = PlanFilter(
        q=request.query("q").strip()[:MAX_WORD_CHARS],
        state=FORMER.get(state, state),
        host=request.query("host")[:NAME_CHARS],
        tool=request.query("tool")[:NAME_CHARS],
        plan=request.query("plan")[:NAME_CHARS],
    )
    if filters.state and filters.state not in STATUSES:
        raise BadForm(f"there is no such state; choose one of {', '.join(STATUSES)}")
    return filters


def _build_options(values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return each value once, sorted, with how it is shown."""
    return tuple((value, shorten_text(value, TITLE_CHARS)) for value in sorted(set(filter(None, values)))[:MAX_OPTIONS])


def _build_row(line: ExecutionLine, now: float) -> PlanRow:
    return PlanRow(
        execution_id=line.execution_id,
        state=line.state,
        words=line.words.word,
        tone=line.words.tone,
        title=shorten_text(line.title, TITLE_CHARS),
        is_quoted=line.is_quoted,
        progress=line.describe_progress(),
        saved_plan=shorten_text(line.saved_plan or "", TITLE_CHARS),
        plan_query=urlencode({"plan": line.saved_plan or ""}),
        host=format_host(line.host or ""),
        question=line.suspension_id,
        fault=escape_text(line.fault or ""),
        changed_at=line.changed_at,
        age=format_age(now - line.changed_at.timestamp()),
    )


async def _list_next_runs(request: InboxRequest) -> tuple[NextRun, ...]:
    """Return the next ones, earliest first. Damaged schedules must not hide the plans: their own page says what is
    wrong."""
    schedules, _ = await list_schedules(request.service)
    waiting = sorted((schedule.next_at, schedule.plan) for schedule in schedules if schedule.paused_at is None)
    return tuple(
        NextRun(plan=shorten_text(plan, TITLE_CHARS), plan_query=urlencode({"plan": plan}), at=to_utc(next_at))
        for next_at, plan in waiting[:MAX_NEXT_RUNS]
    )
