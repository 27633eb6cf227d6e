"""Pages of several questions: those that wait, several decided at once, and those that are over."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import BaseRoute

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import PlanwardenError, UnknownSuspension
from planwarden.server.inbox.address import BASE
from planwarden.server.inbox.answer import answer
from planwarden.server.inbox.facts import ShownQuestion
from planwarden.server.inbox.lookup import decided, find_question, waiting, waiting_token
from planwarden.server.inbox.request import BadForm, InboxRequest, change, page
from planwarden.server.inbox.site import InboxSite

MAX_TOGETHER = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of one decision among several."""

    suspension_id: str
    tool: str
    text: str
    tone: str


def list_routes(site: InboxSite) -> Sequence[BaseRoute]:
    return (
        page(site, BASE, show_waiting),
        page(site, f"{BASE}/", show_waiting),
        page(site, f"{BASE}/waiting", show_waiting_part),
        page(site, f"{BASE}/history", show_history),
        page(site, f"{BASE}/review", show_review),
        change(site, f"{BASE}/review/decision", decide_together),
    )


async def show_waiting(visit: InboxRequest) -> Response:
    return await _waiting(visit, "waiting.html")


async def show_waiting_part(visit: InboxRequest) -> Response:
    """The list alone, for the page's own refresh; nothing while it is what the page shows already."""
    return await _waiting(visit, "_waiting.html", seen=visit.request.query_params.get("seen"))


async def show_history(visit: InboxRequest) -> Response:
    listed = await decided(visit.service, _after(visit))
    return visit.page("history.html", listed=listed, after=_after(visit))


async def show_review(visit: InboxRequest) -> Response:
    """Every call of the chosen questions, whole, before one decision about all of them."""
    chosen = list(dict.fromkeys(visit.request.query_params.getlist("id")))
    if not chosen:
        return visit.to("")
    if len(chosen) > MAX_TOGETHER:
        raise BadForm(f"at most {MAX_TOGETHER} questions are decided together, and {len(chosen)} were chosen")
    ready: list[ShownQuestion] = []
    single: list[ShownQuestion] = []
    gone = 0
    for suspension_id in chosen:
        try:
            found = (await find_question(visit.service, suspension_id)).shown
        except UnknownSuspension:
            gone += 1
            continue
        if not found.is_open:
            gone += 1
        else:
            (ready if found.is_plain else single).append(found)
    return visit.page("review.html", ready=ready, single=single, gone=gone)


async def decide_together(visit: InboxRequest) -> Response:
    """One decision for each checked question; each stands or falls by itself."""
    verdict, chosen = visit.given("decision"), visit.form.get("decide", ())
    if verdict not in ("approve", "reject") or not 0 < len(chosen) <= MAX_TOGETHER:
        raise BadForm("choose at least one question, and approve or reject")
    reason = visit.given("reason").strip() or None
    decision = Decision(approved=verdict == "approve", reason=reason)
    outcomes = [await _decide_one(visit, item, decision) for item in dict.fromkeys(chosen)]
    failed = sum(outcome.tone == "bad" for outcome in outcomes)
    return visit.page("reviewed.html", outcomes=outcomes, failed=failed, verdict=verdict)


async def _decide_one(visit: InboxRequest, item: str, decision: Decision) -> BatchResult:
    suspension_id, _, digest = item.partition(":")
    tool = "unknown"
    try:
        asked = await find_question(visit.service, suspension_id)
        tool = asked.shown.call.tool if asked.shown.call is not None else asked.shown.kind
        if not asked.shown.is_plain:
            raise BadForm("this question is answered on its own page")
        view = await answer(visit, asked, decision, digest, wait_s=0)
    except PlanwardenError as error:
        return BatchResult(suspension_id=suspension_id[:64], tool=tool, text=error.message, tone="bad")
    still_open = next((found for found in view.suspensions if found.suspension_id == suspension_id), None)
    if still_open is not None:
        has_voted = any(vote.principal == visit.session.principal for vote in still_open.endorsements)
        text = "approved by you, others have to agree" if has_voted else "your approval does not suffice; it stays open"
        return BatchResult(suspension_id=suspension_id, tool=tool, text=text, tone="good" if has_voted else "bad")
    return BatchResult(
        suspension_id=suspension_id, tool=tool, text="approved" if decision.approved else "rejected", tone="good"
    )


async def _waiting(visit: InboxRequest, template: str, seen: str | None = None) -> Response:
    listed = await waiting(visit.service, _after(visit))
    token = waiting_token(listed)
    if seen == token:
        return Response(status_code=204)
    return visit.page(template, listed=listed, after=_after(visit), seen=token)


def _after(visit: InboxRequest) -> str | None:
    return visit.request.query_params.get("after") or None
