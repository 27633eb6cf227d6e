"""The pages that list questions, questions to decide together, plans, calls of hosts through gates, and receipts.

The inbox belongs to the operator, so it lists the executions of every principal, the newest activity first. The list of
plans reads no log; the list of calls reads the logs of the calls on the page.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlencode

from starlette.responses import Response

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, StoreError, UnknownSuspension
from planwarden.agent.core.execution.synopsis import MAX_WORD_CHARS, NAME_CHARS
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.server.guard.receipts import build_receipt, list_sessions
from planwarden.server.inbox.pages.saved_plans import list_schedules
from planwarden.server.inbox.questions import PAGE_SIZE, find_question, find_questions, record_decision
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes, Values, build_token
from planwarden.server.notifications.messages import describe_question
from planwarden.server.views.card import Card
from planwarden.server.views.card_calls import build_call, note_tool
from planwarden.server.views.decisions import describe_decision, find_decided
from planwarden.server.views.escaping import escape_text, format_value, shorten_text
from planwarden.server.views.instants import to_utc
from planwarden.server.views.listing import ExecutionLine, build_line
from planwarden.server.views.status_words import STATUSES, WORDS
from planwarden.tools.downstream.config import build_slug
from planwarden.tools.downstream.config_file import RESERVED_SOURCES

MAX_TOGETHER = 50
MAX_SESSIONS = 50
TITLE_CHARS = 160
RESULT_CHARS = 200
LARGE = "large; see the page of the call"
MAX_OPTIONS = 500
"""The most values that a filter offers; a person can write any other value into the address."""
MAX_NEXT_RUNS = 3

ROUTES = PageRoutes()


@ROUTES.page("", "/")
async def show_waiting(request: InboxRequest) -> Response:
    after, store = request.query("after") or None, request.service.store
    # The store returns the most dangerous questions first, then the oldest.
    page = await store.waiting(limit=PAGE_SIZE, cursor=after)
    records = await find_questions(request.service, page.rows)

    async def build() -> Values:
        return {
            "listed": page,
            "cards": [record.card for record in records],
            "notices": {each.suspension_id: describe_question(each.execution, each.suspension) for each in records},
            "after": after,
        }

    questions = [(each.suspension, each.execution.is_finished) for each in records]
    states = [
        (item.question.suspension_id, item.question.digest, item.is_open, item.endorsements, is_over)
        for item, is_over in questions
    ]
    return await request.render_live("waiting.html", "_waiting.html", build_token((page.total, states)), build)


@ROUTES.page("/history")
async def show_history(request: InboxRequest) -> Response:
    after = request.query("after") or None
    page = await request.service.store.decided(limit=PAGE_SIZE, cursor=after)
    cards = [record.card for record in await find_questions(request.service, page.rows)]
    return request.render_page("history.html", listed=page, cards=cards, after=after)


@ROUTES.page("/review")
async def show_review(request: InboxRequest) -> Response:
    """Show every call of the chosen questions completely, before a person makes one decision about all of them."""
    question_ids = list(dict.fromkeys(request.http.query_params.getlist("id")))
    if not question_ids:
        raise BadForm(
            "nothing is selected: tick the questions that you want to review together, then press Review selected"
        )
    if len(question_ids) > MAX_TOGETHER:
        raise BadForm(f"you can decide at most {MAX_TOGETHER} questions together, and chose {len(question_ids)}")
    cards: list[Card] = []
    for suspension_id in question_ids:
        with suppress(UnknownSuspension):
            cards.append((await find_question(request.service, suspension_id)).card)
    ready = [card for card in cards if card.is_open and card.is_yes_or_no]
    single = [card for card in cards if card.is_open and not card.is_yes_or_no]
    closed_count = len(question_ids) - len(ready) - len(single)
    return request.render_page("review.html", ready=ready, single=single, gone=closed_count)


@ROUTES.form("/review/decision")
async def decide_together(request: InboxRequest) -> Response:
    """Apply one decision to each checked question; a failure of one does not affect the others."""
    verdict, question_ids = request.form_value("decision"), request.form.get("decide", ())
    if verdict not in ("approve", "reject") or not 0 < len(question_ids) <= MAX_TOGETHER:
        raise BadForm("choose at least one question, then approve or reject")
    decision = Decision(approved=verdict == "approve")
    outcomes = [await _decide_one(request, item, decision) for item in dict.fromkeys(question_ids)]
    failed = sum(outcome["tone"] == "bad" for outcome in outcomes)
    return request.render_page("reviewed.html", outcomes=outcomes, failed=failed, verdict=verdict)


async def _decide_one(request: InboxRequest, item: str, decision: Decision) -> Values:
    suspension_id, _, digest = item.partition(":")
    tool = "unknown"
    try:
        record = await find_question(request.service, suspension_id)
        tool = record.card.call.tool.label if record.card.call is not None else record.question.kind
        if not record.card.is_yes_or_no:
            raise BadForm("answer this question on its own page")
        execution = await record_decision(request, record, decision, digest, wait_s=0)
    except PlanwardenError as error:
        return {"suspension_id": suspension_id[:64], "tool": tool, "text": error.message, "tone": "bad"}
    after = execution.suspensions[record.suspension_id]
    text, tone = "approved; its page says what became of it" if decision.approved else "rejected", "plain"
    if after.is_open:
        text, tone = "your approval is not enough; the question stays open", "bad"
        if any(vote.principal == request.session.principal for vote in after.endorsements):
            text, tone = "approved by you; other people must approve it too", "plain"
    return {"suspension_id": suspension_id, "tool": tool, "text": text, "tone": tone}


@ROUTES.page("/receipts")
async def show_receipt(request: InboxRequest) -> Response:
    """Show the receipt of the session that the address names, or of the newest session."""
    store, settings = request.service.store, request.site.settings
    try:
        receipt = await build_receipt(store, settings, request.query("session"))
    except InvalidArguments as error:
        return request.render_page("receipts.html", title=escape_text(error.message), lines=(), sessions=())
    sessions = [(each.session, escape_text(f"{each.host}, {each.folder}")) for each in await list_sessions(store)]
    return request.render_page(
        "receipts.html",
        title=escape_text(receipt.title),
        lines=[escape_text(line) for line in receipt.lines],
        sessions=sessions[:MAX_SESSIONS],
    )


@ROUTES.page("/plans", "/calls")
async def show_executions(request: InboxRequest) -> Response:
    """Show plans or, under `/calls`, what hosts called through gates."""
    place = request.http.url.path.rpartition("/")[2]
    is_gated = place == "calls"
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
    next_runs = [] if query or after or is_gated else await _list_next_runs(request)

    async def build() -> Values:
        lines = [build_line(row) for row in listed.rows]
        return {
            "place": place,
            "rows": [(line, await _find_call(request, line) if is_gated else None) for line in lines],
            "now": store.clock.now(),
            "title_chars": TITLE_CHARS,
            "next_cursor": listed.next_cursor,
            "next_runs": next_runs,
            "wanted": selection,
            # The part of an address that keeps this filter.
            "query": f"{query}&" if query else "",
            "after": after,
            "choices": None if request.is_refresh else await _build_choices(request, selection),
        }

    # The token leaves the ages out, so that a page does not change only because time passes.
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


async def _find_call(request: InboxRequest, line: ExecutionLine) -> Values | None:
    """Return the call of an execution and what became of it; None unless it can be read and makes exactly one call."""
    try:
        execution = await request.service.find(line.execution_id)
    except StoreError:
        return None
    calls = [call for state in execution.steps.values() for call in state.list_known_calls()]
    if len(calls) != 1:
        return None
    [call] = calls
    result = LARGE if call.artifact else format_value(call.value, RESULT_CHARS)
    return {
        # Show the arguments with which the call was or will be made.
        "view": build_call(note_tool(request.service.tools, call.tool_name), call.arguments or call.proposed),
        "words": WORDS["call"][call.status] if call.status == "outcome_unknown" else line.words,
        "decided": describe_decision(find_decided(execution, call), has_reason=False) or "",
        "result": result if call.status == "succeeded" else "",
    }


async def _list_next_runs(request: InboxRequest) -> list[Values]:
    """Return the next runs of schedules, earliest first; none if the schedules cannot be read. Such a fault must not
    hide the plans, and the page of saved plans says what is wrong."""
    schedules, _ = await list_schedules(request.service)
    waiting = sorted((schedule.next_at, schedule.plan) for schedule in schedules if schedule.paused_at is None)
    return [{"plan": plan, "at": to_utc(next_at)} for next_at, plan in waiting[:MAX_NEXT_RUNS]]
