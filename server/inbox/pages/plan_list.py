"""The lists of plans, and of calls that hosts made through gates: the newest activity first, with filters and pages.

The inbox belongs to the operator, so it lists the executions of every principal. The list of plans reads no log; the
list of calls reads the logs of the calls on the page.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from starlette.responses import Response

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution.synopsis import MAX_WORD_CHARS, NAME_CHARS
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes, Values, build_token
from planwarden.server.inbox.saved.schedule_page import list_schedules
from planwarden.server.views.card import format_host
from planwarden.server.views.card_calls import build_call, note_tool
from planwarden.server.views.decisions import describe_decision, find_decided
from planwarden.server.views.escaping import escape_text, format_value, shorten_text
from planwarden.server.views.instants import format_age, to_utc
from planwarden.server.views.listing import ExecutionLine, build_line
from planwarden.server.views.status_words import STATUSES, WORDS
from planwarden.tools.downstream.config import build_slug
from planwarden.tools.downstream.config_file import RESERVED_SOURCES

PAGE_SIZE = 25
TITLE_CHARS = 160
RESULT_CHARS = 200
LARGE = "large; see the page of the call"
MAX_OPTIONS = 500
"""The most values that a filter offers; a person can write any other value into the address."""
MAX_NEXT_RUNS = 3

ROUTES = PageRoutes()


@ROUTES.page("/plans")
async def show_plans(request: InboxRequest) -> Response:
    return await _show(request, is_gated=False)


@ROUTES.page("/calls")
async def show_calls(request: InboxRequest) -> Response:
    """Show what hosts called through gates."""
    return await _show(request, is_gated=True)


async def _show(request: InboxRequest, *, is_gated: bool) -> Response:
    selection = _read_filter(request)
    query = urlencode({name: value for name, value in selection.items() if value})
    after, store = request.query("after") or None, request.service.store
    listed = await store.list_executions(
        ExecutionFilter(
            search=selection["q"],
            status=STATUSES[selection["state"]] if selection["state"] else None,
            host=selection["host"] or None,
            tool=selection["tool"] or None,
            tool_prefix=f"{build_slug(selection['server'])}_" if selection["server"] else "",
            saved_plan=selection["plan"] or None,
            is_gated=is_gated,
        ),
        limit=PAGE_SIZE,
        cursor=after,
    )
    has_next_runs = not query and after is None and not is_gated
    next_runs = await _list_next_runs(request) if has_next_runs else []

    async def build() -> Values:
        now = store.clock.now()
        rows = [_build_row(build_line(row), now) for row in listed.rows]
        return {
            "place": "calls" if is_gated else "plans",
            "rows": [await _add_call(request, row) for row in rows] if is_gated else rows,
            "next_cursor": listed.next_cursor,
            "next_runs": next_runs,
            "wanted": selection,
            "plan": shorten_text(selection["plan"], TITLE_CHARS),
            # The part of an address that keeps this filter.
            "query": f"{query}&" if query else "",
            "after": after,
            "choices": None if request.is_refresh else await _build_choices(request, selection),
        }

    # The token leaves the ages out: a page need not change only because time passes.
    return await request.render_live("plans.html", "_plans.html", build_token((listed, next_runs)), build)


async def _build_choices(request: InboxRequest, selection: Mapping[str, str]) -> Values:
    """Return what the filter offers: each value, and the text that the page shows for it."""
    store, tools = request.service.store, request.service.tools
    hosts = (*await store.list_hosts(), selection["host"])
    names = (*(definition.name for definition in tools.definitions()), selection["tool"])
    sources = {definition.source for definition in tools.definitions()} - RESERVED_SOURCES
    return {
        "states": [(state, state) for state in STATUSES],
        "tools": _build_options(names),
        "hosts": _build_options(hosts),
        "servers": _build_options((*sources, selection["server"])),
    }


def _read_filter(request: InboxRequest) -> dict[str, str]:
    """Return the filter that the address holds, with long values cut. Raises `BadForm` for an unknown state."""
    selection = {"q": request.query("q").strip()[:MAX_WORD_CHARS], "state": request.query("state")}
    selection |= {name: request.query(name)[:NAME_CHARS] for name in ("host", "tool", "plan", "server")}
    if selection["state"] not in ("", *STATUSES):
        raise BadForm(f"there is no such state; choose one of {', '.join(STATUSES)}")
    return selection


def _build_options(values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return each value once, sorted, with the text that the page shows for it; keep the first `MAX_OPTIONS` given."""
    offered = [*dict.fromkeys(filter(None, values))][:MAX_OPTIONS]
    return tuple((value, shorten_text(value, TITLE_CHARS)) for value in sorted(offered))


def _build_row(line: ExecutionLine, now: float) -> Values:
    """Return the row for one execution, with every text escaped and shortened."""
    return {
        "execution_id": line.execution_id,
        "state": line.state,
        "words": line.words.word,
        "tone": line.words.tone,
        "title": shorten_text(line.title, TITLE_CHARS),
        "is_quoted": line.is_quoted,
        "progress": line.describe_progress(),
        "saved_plan": shorten_text(line.saved_plan or "", TITLE_CHARS),
        "plan_query": urlencode({"plan": line.saved_plan or ""}),
        "host": format_host(line.host or ""),
        "question": line.suspension_id,
        "fault": escape_text(line.fault or ""),
        "changed_at": line.changed_at,
        "age": format_age(now - line.changed_at.timestamp()),
        "call": None,
        "result": "",
    }


async def _add_call(request: InboxRequest, row: Values) -> Values:
    """Return the row; add its call if its execution can be read and makes exactly one call."""
    try:
        execution = await request.service.find(row["execution_id"])
    except StoreError:
        return row
    calls = [call for state in execution.steps.values() for call in state.list_known_calls()]
    if len(calls) != 1:
        return row
    [call] = calls
    words, result = WORDS["call"][call.status], LARGE if call.artifact else format_value(call.value, RESULT_CHARS)
    return {
        **row,
        **({"words": words.word, "tone": words.tone} if call.status == "outcome_unknown" else {}),
        # Show the arguments with which the call was or will be made.
        "call": build_call(note_tool(request.service.tools, call.tool_name), call.arguments or call.proposed),
        "decided": describe_decision(find_decided(execution, call), has_reason=False) or "",
        "result": result if call.status == "succeeded" else "",
    }


async def _list_next_runs(request: InboxRequest) -> list[Values]:
    """Return the next runs of schedules, earliest first; none if the schedules cannot be read. Such a fault must not
    hide the plans, and the page of saved plans says what is wrong."""
    schedules, _ = await list_schedules(request.service)
    waiting = sorted((schedule.next_at, schedule.plan) for schedule in schedules if schedule.paused_at is None)
    return [
        {"plan": shorten_text(plan, TITLE_CHARS), "plan_query": urlencode({"plan": plan}), "at": to_utc(next_at)}
        for next_at, plan in waiting[:MAX_NEXT_RUNS]
    ]
