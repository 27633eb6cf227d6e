"""The page of one question, and the decision that a person sends from it.

The form carries the digest of the revision that the page showed. The engine compares that digest again in the
transaction that records the decision. A person who edits arguments approves them in a second step, on a page that shows
the difference.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.canonical import canonical_json, read_json
from planwarden.agent.common.errors import AlreadyDecided, InvalidArguments, InvalidPlan, LimitExceeded, PlanwardenError
from planwarden.server.inbox.answering import (
    APPROVING,
    build_fault_remark,
    build_fields,
    find_asked,
    read_reason,
    record_answer,
    render_question,
    render_status,
)
from planwarden.server.inbox.forms import FilledForm, fill_form, is_changed, read_answer, refill_form
from planwarden.server.inbox.keys.signing import can_sign
from planwarden.server.inbox.pages.rows import decide_rows
from planwarden.server.inbox.questions import QuestionRecord
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes, Remark, describe_refusal
from planwarden.server.inbox.value_view import ArgumentChange, find_changes
from planwarden.server.views.facts import escape_text
from planwarden.server.views.fields import Field

VERDICTS = ("approve", "reject", "review", "edit", "sign")
_ORDER = "the order of the steps"


class _PlanEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What a person made of the plan under review."""

    text: str
    plan: dict[str, JsonValue] | None = None
    """None when the text is no JSON object."""
    changes: tuple[ArgumentChange, ...] = ()
    fault: str = ""
    """Why the text is no plan, escaped."""


ROUTES = PageRoutes()


@ROUTES.page("/suspensions/{suspension_id}")
async def show_question(request: InboxRequest) -> Response:
    """The page; when it refreshes itself, only the part that shows the status."""
    record = await find_asked(request)
    return await (render_status(request, record) if request.is_refresh else render_question(request, record))


@ROUTES.form("/suspensions/{suspension_id}/decision")
async def decide(request: InboxRequest) -> Response:
    """Approve, reject, or show the difference first."""
    record = await find_asked(request)
    verdict, digest = request.form_value("decision"), request.form_value("digest")
    is_of_rows = record.suspension.question.is_batch
    # The buttons that turn the pages of rows, and those that tick all of them, decide nothing.
    turns = is_of_rows and (request.form_value("page") or request.form_value("tick"))
    if (verdict not in VERDICTS and not turns) or len(digest) != 64:
        raise BadForm
    if not record.view.is_open and verdict not in ("approve", "reject", "sign"):
        raise AlreadyDecided("this question has been decided in the meantime")
    if record.view.is_open and digest != record.view.digest:
        text = "This question was revised since you looked at it. This page shows it as it is now; nothing was decided."
        return await render_question(request, record, Remark(text=text), status=409)
    if verdict == "reject":
        return await record_answer(request, record, Decision(approved=False, reason=read_reason(request)))
    if record.view.kind == "reconcile":
        return await _reconcile(request, record)
    if record.view.plan is not None:
        return await _review(request, record, verdict, record.view.plan)
    if record.suspension.question.form is not None:
        return await _submit_form(request, record, verdict)
    if is_of_rows:
        return await decide_rows(request, record, verdict)
    return await _approve(request, record, verdict)


async def _approve(request: InboxRequest, record: QuestionRecord, verdict: str) -> Response:
    """Approve the call as shown, or with edits whose difference the person has seen."""
    fields = build_fields(request, record)
    before = record.suspension.question.arguments or {}
    filled = _read_edits(request, fields, before)
    if filled.faults:
        return await render_question(request, record, build_fault_remark(), filled=filled, status=422)
    if not is_changed(before, filled.values):
        if verdict in APPROVING:
            return await record_answer(request, record, Decision(approved=True, reason=read_reason(request)))
        remark = Remark(text="You changed no argument.", tone="plain") if verdict == "review" else None
        return await render_question(request, record, remark, filled=filled)
    if verdict == "edit":
        return await render_question(request, record, filled=filled)
    tool_name = record.suspension.question.tool_name or ""
    completed, faults = request.service.tools.complete(tool_name, filled.values)
    if faults:
        text = f"These arguments do not fit the tool: {escape_text('; '.join(faults[:5]))}"
        return await render_question(request, record, Remark(text=text, tone="bad"), filled=filled, status=422)
    page = request.confirm(
        [record.view.digest, completed],
        lambda seen: request.render_page(
            "changes.html",
            question=record.view,
            changes=find_changes(before, completed),
            edited=canonical_json(completed),
            seen=seen,
            reason=request.form_value("reason"),
            can_sign=can_sign(request, record),
        ),
    )
    decision = Decision(approved=True, reason=read_reason(request), modified_args=completed)
    return page or await record_answer(request, record, decision)


async def _review(
    request: InboxRequest, record: QuestionRecord, verdict: str, before: dict[str, JsonValue]
) -> Response:
    """Approve the plan as shown, perhaps with its known calls, or an edited one whose difference was seen."""
    edit = _read_plan_edit(request.form_value("edited") or request.form_value("plan"), before)
    if edit.plan is None:
        return await render_question(request, record, Remark(text=edit.fault, tone="bad"), plan=edit.text, status=422)
    if not edit.changes:
        if verdict in APPROVING:
            content: JsonValue = {"cover": True} if request.form_value("cover") == "yes" else None
            return await record_answer(
                request, record, Decision(approved=True, reason=read_reason(request), content=content)
            )
        remark = Remark(text="You changed nothing.", tone="plain") if verdict == "review" else None
        return await render_question(request, record, remark)
    if verdict == "edit":
        return await render_question(request, record, plan=edit.text)
    page = request.confirm(
        [record.view.digest, edit.plan],
        lambda seen: request.render_page(
            "changes.html",
            question=record.view,
            changes=edit.changes,
            edited=canonical_json(edit.plan),
            seen=seen,
            reason=request.form_value("reason"),
            can_sign=False,
        ),
    )
    try:
        decision = Decision(approved=True, reason=read_reason(request), content={"plan": edit.plan})
        return page or await record_answer(request, record, decision)
    except (InvalidPlan, InvalidArguments, LimitExceeded) as error:
        return await render_question(request, record, describe_refusal(error), plan=edit.text, status=422)


def _read_plan_edit(text: str, before: dict[str, JsonValue]) -> _PlanEdit:
    """Return the edit; it has no changes if the text is empty or says what the plan says."""
    if not text.strip():
        return _PlanEdit(text="", plan=before)
    try:
        plan = read_json(text)
    except PlanwardenError as error:
        return _PlanEdit(text=text, fault=f"The plan is {escape_text(error.message)}")
    if not isinstance(plan, dict):
        return _PlanEdit(text=text, fault="The plan is no JSON object")
    return _PlanEdit(text=text, plan=plan, changes=find_changes(_map_steps(before), _map_steps(plan)))


def _map_steps(plan: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The steps by id, their order, and everything else that the plan says."""
    listed = plan.get("todoList", plan.get("steps"))
    steps = listed if isinstance(listed, list) else []
    found: dict[str, JsonValue] = {key: value for key, value in plan.items() if key not in ("todoList", "steps")}
    for number, step in enumerate(steps, 1):
        step_id = step.get("id") if isinstance(step, dict) else None
        found[f"step {step_id if isinstance(step_id, str) else number}"] = step
    found[_ORDER] = [step.get("id") if isinstance(step, dict) else None for step in steps]
    return found


async def _submit_form(request: InboxRequest, record: QuestionRecord, verdict: str) -> Response:
    """Answer a question that asks for a form."""
    fields = build_fields(request, record)
    filled = fill_form(fields, request.form_values())
    if filled.faults or verdict not in APPROVING:
        remark = build_fault_remark() if filled.faults else None
        return await render_question(request, record, remark, filled=filled, status=422)
    try:
        return await record_answer(request, record, Decision(approved=True, content=read_answer(fields, filled)))
    except InvalidArguments as error:
        remark = Remark(text=error.message, tone="bad")
        return await render_question(request, record, remark, filled=filled, status=422)


async def _reconcile(request: InboxRequest, record: QuestionRecord) -> Response:
    """Record whether a call without a result took effect."""
    happened, text = request.form_value("happened"), request.form_value("result").strip()
    if happened not in ("yes", "no"):
        return await render_question(request, record, Remark(text="Choose whether it happened."), status=422)
    content: dict[str, JsonValue] = {"happened": happened == "yes"}
    if happened == "yes" and text:
        try:
            content["result"] = read_json(text)
        except (InvalidArguments, LimitExceeded) as error:
            remark = Remark(text=f"The result is {escape_text(error.message)}", tone="bad")
            return await render_question(request, record, remark, status=422)
    return await record_answer(request, record, Decision(approved=True, content=content))


def _read_edits(request: InboxRequest, fields: Sequence[Field], before: Mapping[str, JsonValue]) -> FilledForm:
    """The values of the inputs, or those that the page with the difference sends; arguments without an input stay."""
    edited = request.form_value("edited")
    if not edited:
        filled, names = fill_form(fields, request.form_values()), {field.name for field in fields}
        unchanged = {name: value for name, value in before.items() if name not in names}
        return replace(filled, values={**unchanged, **filled.values})
    values = read_json(edited)
    if not isinstance(values, dict):
        raise BadForm
    return refill_form(fields, values)
