"""The page of one question, and the decision that a person sends from it.

The form carries the digest of the revision that the page showed. The engine compares that digest again in the
transaction that records the decision. Approving edits, or rows on pages that the person has not opened, takes a second
step: a page that shows the difference, and names the rows that were not opened.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.canonical import canonical_json, is_same_json, read_json
from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, LimitExceeded, PlanwardenError
from planwarden.server.inbox.answering import (
    APPROVING,
    FAULTY_FIELDS,
    build_question_fields,
    record_answer,
    render_question,
    render_status,
)
from planwarden.server.inbox.forms import WHOLE_FORM_KEY, FilledForm, fill_form, refill_form
from planwarden.server.inbox.questions import QuestionRecord, find_question_of
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes, Remark, describe_refusal
from planwarden.server.inbox.row_choice import RowChoice, list_row_changes, read_choice, read_page_number, split_rows
from planwarden.server.inbox.signing_keys import can_sign
from planwarden.server.views.escaping import ArgumentChange, escape_text, find_changes
from planwarden.server.views.fields import format_ranges

VERDICTS = ("approve", "reject", "review", "edit", "sign")
_ORDER = "the order of the steps"
NOTHING_TICKED = "Tick the rows to approve, or reject all of them."
ALL_BEFORE_SIGNING = "Open every page of the rows before you sign: what you sign covers all rows that are ticked."


class _Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A person's edit of the arguments of a call, or of the plan under review."""

    draft: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    changes: tuple[ArgumentChange, ...] = ()
    fault: str = ""
    """Why the edit cannot be approved, escaped."""
    filled: FilledForm | None = None
    plan: str | None = None
    """The text of an edited plan, which the page shows again. For edited arguments, the page shows `filled` again."""


ROUTES = PageRoutes()


@ROUTES.page("/suspensions/{suspension_id}")
async def show_question(request: InboxRequest) -> Response:
    """Return the page, or only its part with the status if an open page refreshes itself."""
    record = await find_question_of(request)
    return await (render_status(request, record) if request.is_refresh else render_question(request, record))


@ROUTES.form("/suspensions/{suspension_id}/decision")
async def decide(request: InboxRequest) -> Response:
    """Approve, reject, or show the difference first."""
    record = await find_question_of(request)
    verdict, digest = request.form_value("decision"), request.form_value("digest")
    # The buttons that turn the pages of rows, and those that tick all rows or none, decide nothing.
    turns = record.question.rows and (request.form_value("page") or request.form_value("tick"))
    if (verdict not in VERDICTS and not turns) or len(digest) != 64:
        raise BadForm
    if not record.card.is_open and verdict not in ("approve", "reject", "sign"):
        return await render_question(request, record, Remark("This question is no longer open.", 409))
    # Only the page with the difference sends `seen`. If any other old page sends a form, show the question again.
    may_repeat = verdict == "approve" and request.form_value("seen") and request.form_value("edited")
    if record.card.is_open and not (may_repeat or _is_current(request, record)):
        text = "This question was revised since you looked at it. This page shows it as it is now; nothing was decided."
        return await render_question(request, record, Remark(text, 409))
    if verdict == "reject":
        return await record_answer(request, record, Decision(approved=False))
    match record.card.answer_kind:
        case "reconcile":
            return await _reconcile(request, record)
        case "form":
            return await _submit_form(request, record, verdict)
        case "rows":
            return await _decide_rows(request, record, verdict)
        case "yes" | "plan":
            return await _approve(request, record, verdict)
        case _:
            assert_never(record.card.answer_kind)


def _is_current(request: InboxRequest, record: QuestionRecord) -> bool:
    """Return whether the question is open and unchanged. If not, only the answer that closed or revised it counts."""
    return record.card.is_open and request.form_value("digest") == record.question.digest


async def _approve(request: InboxRequest, record: QuestionRecord, verdict: str) -> Response:
    """Approve the call or the plan as it was shown, or with edits that a page has shown to the person."""
    plan, edited = record.card.plan, request.form_value("edited")
    if edited and not _is_current(request, record):
        # After a second click the question may already hold these edits, so compare them with the recorded answer.
        return await record_answer(request, record, _approve_edit(plan, read_json(edited)))
    edit = _read_arguments(request, record) if plan is None else _read_plan(request, plan)
    show = partial(render_question, request, record, filled=edit.filled, plan=edit.plan)
    if edit.fault:
        return await show(Remark(edit.fault, 422, "bad"))
    if not edit.changes:
        if verdict in APPROVING:
            is_covering = plan is not None and request.form_value("cover") == "yes"
            content: JsonValue = {"cover": True} if is_covering else None
            return await record_answer(request, record, Decision(approved=True, content=content))
        return await show(Remark("You changed nothing.", tone="plain") if verdict == "review" else None)
    if verdict == "edit":
        return await show()
    page = request.confirm(
        [record.question.digest, edit.draft],
        lambda draft_hash: request.render_page(
            "changes.html",
            card=record.card,
            changes=edit.changes,
            edited=canonical_json(edit.draft),
            seen=draft_hash,
            can_sign=plan is None and can_sign(request, record),
        ),
    )
    try:
        return page or await record_answer(request, record, _approve_edit(plan, edit.draft))
    except (InvalidPlan, InvalidArguments, LimitExceeded) as error:
        return await show(replace(describe_refusal(error), status=422))


def _approve_edit(plan: JsonValue, draft: JsonValue) -> Decision:
    """Return the approval of a call with edited arguments or, if there is a `plan`, of its edited plan."""
    edits: Mapping[str, Any] = {"modified_args": draft} if plan is None else {"content": {"plan": draft}}
    return Decision(approved=True, **edits)


def _read_arguments(request: InboxRequest, record: QuestionRecord) -> _Edit:
    """Return the edit of the arguments, from the fields of the form or from the page that showed the difference."""
    before, fields = record.question.arguments or {}, build_question_fields(request, record)
    edited = request.form_value("edited")
    if edited:
        values = read_json(edited)
        if not isinstance(values, dict):
            raise BadForm
        filled = refill_form(fields, values)
    else:
        filled = fill_form(fields, request.form_values(), before)
    if filled.faults:
        return _Edit(fault=FAULTY_FIELDS, filled=filled)
    if is_same_json(before, filled.values):
        return _Edit(filled=filled)
    completed, faults = request.service.tools.complete(record.question.tool_name or "", filled.values)
    draft = filled.values if record.execution.options.is_literal else completed
    fault = f"These arguments do not fit the tool: {escape_text('; '.join(faults[:5]))}" if faults else ""
    return _Edit(draft=draft, changes=find_changes(before, draft), fault=fault, filled=filled)


def _read_plan(request: InboxRequest, before: dict[str, JsonValue]) -> _Edit:
    """Return the edited plan. It has no changes if the text is empty or has the same content as the plan."""
    text = request.form_value("edited") or request.form_value("plan")
    if not text.strip():
        return _Edit()
    try:
        plan = read_json(text)
    except PlanwardenError as error:
        return _Edit(plan=text, fault=f"The plan is {escape_text(error.message)}")
    if not isinstance(plan, dict):
        return _Edit(plan=text, fault="The plan is not a JSON object")
    changes = find_changes(_map_steps(before), _map_steps(plan))
    return _Edit(draft=plan, changes=changes, plan=text if changes else None)


def _map_steps(plan: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the steps by id, their order, and all other members of the plan."""
    listed = plan.get("todoList", plan.get("steps"))
    steps = listed if isinstance(listed, list) else []
    parts: dict[str, JsonValue] = {key: value for key, value in plan.items() if key not in ("todoList", "steps")}
    for number, step in enumerate(steps, 1):
        step_id = step.get("id") if isinstance(step, dict) else None
        parts[f"step {step_id if isinstance(step_id, str) else number}"] = step
    parts[_ORDER] = [step.get("id") if isinstance(step, dict) else None for step in steps]
    return parts


async def _submit_form(request: InboxRequest, record: QuestionRecord, verdict: str) -> Response:
    fields = build_question_fields(request, record)
    filled = fill_form(fields, request.form_values())
    if filled.faults or verdict not in APPROVING:
        remark = Remark(FAULTY_FIELDS, 422, "bad") if filled.faults else None
        return await render_question(request, record, remark, filled=filled, status=422)
    try:
        is_whole = [field.key for field in fields] == [WHOLE_FORM_KEY]
        content = filled.values.get("") if is_whole else filled.values
        return await record_answer(request, record, Decision(approved=True, content=content))
    except InvalidArguments as error:
        return await render_question(request, record, Remark(error.message, 422, "bad"), filled=filled)


async def _reconcile(request: InboxRequest, record: QuestionRecord) -> Response:
    """Record whether a call without a result took effect."""
    happened, text = request.form_value("happened"), request.form_value("result").strip()
    if happened not in ("yes", "no"):
        return await render_question(request, record, Remark("Choose whether it happened.", 422))
    content: dict[str, JsonValue] = {"happened": happened == "yes"}
    if happened == "yes" and text:
        try:
            content["result"] = read_json(text)
        except (InvalidArguments, LimitExceeded) as error:
            remark = Remark(f"The result is {escape_text(error.message)}", 422, "bad")
            return await render_question(request, record, remark)
    return await record_answer(request, record, Decision(approved=True, content=content))


async def _decide_rows(request: InboxRequest, record: QuestionRecord, verdict: str) -> Response:
    """Turn to another page, show a fault or the choice so far, or approve the rows that are ticked."""
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
    # If the same decision is sent again, return the recorded outcome without a second step.
    if verdict in APPROVING and not (_is_current(request, record) and (unseen or edited)):
        return await _approve_rows(request, record, choice, picks, edited)
    if verdict == "sign" and unseen:
        return await render_question(request, record, Remark(ALL_BEFORE_SIGNING, 422, "bad"), choice=choice)
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
            can_sign=can_sign(request, record),
        ),
    )
    return page or await _approve_rows(request, record, choice, picks, edited)


async def _approve_rows(
    request: InboxRequest, record: QuestionRecord, choice: RowChoice, picks: list[int], edited: dict[str, JsonValue]
) -> Response:
    content: JsonValue = {"items": list[JsonValue](picks)} if choice.left_out else None
    decision = Decision(approved=True, content=content, modified_args=edited or None)
    try:
        # If somebody else must approve too, the next revision of the question already includes the edits.
        return await record_answer(request, record, decision, replace(choice, edits={}))
    except InvalidArguments as error:
        return await render_question(request, record, describe_refusal(error), choice=choice)


def _turn(request: InboxRequest, choice: RowChoice, pages: Sequence[range]) -> RowChoice | None:
    """Return the choice on another page, or with all rows or none ticked; None if another button was pressed."""
    if text := request.form_value("page"):
        page = read_page_number(text, len(pages))
        return replace(choice, page=page, opened=choice.opened | {page})
    tick = request.form_value("tick")
    if tick not in ("", "all", "none"):
        raise BadForm
    rows = frozenset(range(pages[-1].stop))
    return replace(choice, left_out=rows if tick == "none" else frozenset()) if tick else None
