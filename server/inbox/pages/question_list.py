"""Pages with several questions: the open ones, those chosen to be decided together, and the closed ones.
Another page shows the receipt of a host's session.
"""

from contextlib import suppress

from starlette.responses import Response

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UnknownSuspension
from planwarden.server.guard.receipts import build_receipt, list_sessions
from planwarden.server.inbox.questions import PAGE_SIZE, build_cards, find_page, find_question, record_decision
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes, Values
from planwarden.server.notifications.messages import describe_question
from planwarden.server.views.card import Card
from planwarden.server.views.escaping import escape_text

MAX_TOGETHER = 50
MAX_SESSIONS = 50

ROUTES = PageRoutes()


@ROUTES.page("", "/")
async def show_waiting(request: InboxRequest) -> Response:
    after, store = request.query("after") or None, request.service.store
    # The store returns the most dangerous questions first, then the oldest.
    listed = await find_page(request.service, await store.waiting(limit=PAGE_SIZE, cursor=after))

    async def build() -> Values:
        return {
            "listed": listed,
            "cards": build_cards(request.service, listed),
            "notices": {
                item.question.suspension_id: describe_question(state, item) for state, item in listed.questions
            },
            "after": after,
        }

    return await request.render_live("waiting.html", "_waiting.html", listed.build_token(), build)


@ROUTES.page("/history")
async def show_history(request: InboxRequest) -> Response:
    after, store = request.query("after") or None, request.service.store
    listed = await find_page(request.service, await store.decided(limit=PAGE_SIZE, cursor=after))
    cards = build_cards(request.service, listed)
    return request.render_page("history.html", listed=listed, cards=cards, after=after)


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
    """Record the decision about one question, and return what became of it."""
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
    after = execution.suspensions[record.row.suspension_id]
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
