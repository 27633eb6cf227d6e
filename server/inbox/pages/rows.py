"""What a person sends from the page of the one question about many calls: rows left out, edited, approved.

Edits, and rows on pages that were not opened, are approved in a second step, on a page that says what it covers.
"""

from collections.abc import Sequence

from msgspec.structs import replace
from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.inbox.answering import (
    APPROVING,
    FAULTY_FIELDS,
    read_reason,
    record_answer,
    render_question,
)
from planwarden.server.inbox.questions import QuestionRecord
from planwarden.server.inbox.request import BadForm, InboxRequest, Remark, describe_refusal
from planwarden.server.inbox.row_choice import RowChoice, list_row_changes, read_choice, read_page_number, split_rows
from planwarden.server.inbox.signing_keys import can_sign
from planwarden.server.views.row_ranges import format_ranges

NOTHING_TICKED = "Tick the rows to approve, or reject all of them."
ALL_BEFORE_SIGNING = "Open every page of the rows before you sign: what you sign covers all rows that are ticked."


async def decide_rows(request: InboxRequest, record: QuestionRecord, verdict: str) -> Response:
    """Turn a page, show a fault or what was chosen, or approve the rows that are ticked."""
    rows = record.question.covers
    pages = split_rows(rows)
    choice = read_choice(request, rows, request.service.tools, pages)
    if choice.has_faults:
        return await render_question(request, record, Remark(FAULTY_FIELDS, 422, "bad"), choice=choice)
    turned = _turn(request, choice, pages)
    if turned is not None or verdict == "edit":
        return await render_question(request, record, choice=turned or choice)
    picks = [row for row in range(len(rows)) if row not in choice.left_out]
    if not picks:
        return await render_question(request, record, Remark(NOTHING_TICKED, 422, "bad"), choice=choice)
    unopened = (page for number, page in enumerate(pages) if number not in choice.opened)
    unseen = [row for page in unopened for row in page if row not in choice.left_out]
    edited = choice.keep(picks)
    if verdict in APPROVING and not record.card.is_open:
        # The same decision again, to which the recorded one is the answer.
        return await _approve(request, record, choice, picks, edited)
    if verdict == "sign" and unseen:
        return await render_question(request, record, Remark(ALL_BEFORE_SIGNING, 422, "bad"), choice=choice)
    if verdict in APPROVING and not (unseen or edited):
        return await _approve(request, record, choice, picks, edited)
    if not (unseen or edited or choice.left_out):
        return await render_question(request, record, Remark("You changed no row.", tone="plain"), choice=choice)
    page = request.confirm(
        [record.question.digest, choice.edits_text, choice.left_out_text],
        lambda draft_hash: request.render_page(
            "row_changes.html",
            card=record.card,
            choice=choice,
            edited=len(edited),
            changes=list_row_changes(record.card, choice),
            chosen=len(picks),
            count=len(rows),
            unseen=len(unseen),
            unseen_text=format_ranges(unseen).replace(",", ", "),
            left_out=choice.left_out_text.replace(",", ", "),
            seen=draft_hash,
            reason=request.form_value("reason"),
            can_sign=can_sign(request, record),
        ),
    )
    return page or await _approve(request, record, choice, picks, edited)


async def _approve(
    request: InboxRequest, record: QuestionRecord, choice: RowChoice, picks: list[int], edited: dict[str, JsonValue]
) -> Response:
    content: JsonValue = {"items": list[JsonValue](picks)} if choice.left_out else None
    decision = Decision(approved=True, reason=read_reason(request), content=content, modified_args=edited or None)
    # What was edited is in the next revision of the question, if somebody else has to approve that.
    unedited_choice = replace(choice, edits={})
    try:
        return await record_answer(request, record, decision, unedited_choice)
    except InvalidArguments as error:
        return await render_question(request, record, describe_refusal(error), choice=choice)


def _turn(request: InboxRequest, choice: RowChoice, pages: Sequence[range]) -> RowChoice | None:
    """Return the choice on another page, or with all rows ticked or none; None if no such button was pressed."""
    if text := request.form_value("page"):
        page = read_page_number(text, len(pages))
        return replace(choice, page=page, opened=choice.opened | {page})
    tick = request.form_value("tick")
    if tick not in ("", "all", "none"):
        raise BadForm
    rows = frozenset(range(pages[-1].stop))
    return replace(choice, left_out=rows if tick == "none" else frozenset()) if tick else None
