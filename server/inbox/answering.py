"""Shows the page of a question, perhaps with what a person has sent so far, and records the person's decision.

All kinds of questions use this page: about a call, about a plan under review, for a form, and about a loop's rows.
"""

from starlette.responses import Response

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import AlreadyDecided, DuplicateEffect, Expired, StaleDefinition, StaleRevision
from planwarden.agent.core.execution import events as ev
from planwarden.server.api.rule_offers import find_offer
from planwarden.server.inbox.allowing import describe_allowed, find_step_tool, find_trust_command
from planwarden.server.inbox.forms import MAX_FIELDS, FilledForm, build_form_fields
from planwarden.server.inbox.questions import (
    WAIT_S,
    QuestionRecord,
    build_question_token,
    find_next_waiting,
    find_question_of,
    list_unavailable_tools,
    record_decision,
)
from planwarden.server.inbox.request import InboxRequest, Remark, Values, describe_refusal, http_status
from planwarden.server.inbox.row_choice import RowChoice, build_rows_view, read_page_number, split_rows
from planwarden.server.inbox.signing_keys import (
    can_sign,
    find_counting_assurance,
    find_signing_obstacle,
    take_signature,
)
from planwarden.server.signatures.signature import SignatureRefused
from planwarden.server.views.escaping import capitalize, escape_text
from planwarden.server.views.fields import Field, build_fields, format_editable_json
from planwarden.server.views.status_words import DECIDERS

APPROVING = ("approve", "sign")
FAULTY_FIELDS = "Some fields need another look; nothing was decided."
_TOO_LATE = (AlreadyDecided, DuplicateEffect, Expired, StaleDefinition, StaleRevision)


async def render_question(
    request: InboxRequest,
    record: QuestionRecord,
    remark: Remark | None = None,
    *,
    filled: FilledForm | None = None,
    plan: str | None = None,
    choice: RowChoice | None = None,
    status: int | None = None,
) -> Response:
    """Return the page of the question. `plan` is the text of an edited plan, to be shown again. `choice` is the
    person's choice of rows; without it, all rows are ticked, and the query `rows` says which page of rows to show."""
    service, question = request.service, record.question
    is_open, may_sign = record.card.is_open, can_sign(request, record)
    definition, rows = service.tools.get(question.tool_name or ""), None
    if question.rows:
        pages = split_rows(question.covers)
        if choice is None:
            page = read_page_number(request.query("rows"), len(pages))
            choice = RowChoice(page=page, opened=frozenset({page}))
        rows = build_rows_view(record.card, service.tools, choice, pages)
    return request.render_page(
        "question.html",
        status=status,
        remark=remark,
        fields=build_question_fields(request, record) if is_open else (),
        filled=filled,
        is_editing=filled is not None or plan is not None,
        plan_text=format_editable_json(record.card.plan) if plan is None and record.card.plan else plan or "",
        can_approve=find_counting_assurance(request, record) == "human",
        can_sign=may_sign,
        obstacle=await find_signing_obstacle(request, record) if may_sign else None,
        missing=tuple(map(escape_text, list_unavailable_tools(service, record.execution))) if is_open else (),
        allows_step=is_open and find_step_tool(record) is not None,
        trust_command=find_trust_command(request, record),
        rows=rows,
        # A rule that would have allowed the newest approved calls of this tool, or None. The page only shows the rule.
        offer=await find_offer(service.store, record.execution, record.suspension, definition),
        whom=DECIDERS,
        is_news=False,
        seen=build_question_token(record),
        **await _build_status_values(request, record),
    )


async def render_status(request: InboxRequest, record: QuestionRecord) -> Response:
    """Return the part of the page that shows the status, for a page that refreshes itself."""

    async def build() -> Values:
        return {**await _build_status_values(request, record), "is_news": request.query("open") == "yes"}

    return await request.render_live("question.html", "_status.html", build_question_token(record), build)


async def _build_status_values(request: InboxRequest, record: QuestionRecord) -> Values:
    """Return the values of `_status.html` without its token."""
    next_id, others = await find_next_waiting(request.service, record)
    return {
        "card": record.card,
        "execution": record.execution,
        "next_id": next_id,
        "others": others,
        "allowed": await describe_allowed(request, record),
    }


async def record_answer(
    request: InboxRequest, record: QuestionRecord, decision: Decision, choice: RowChoice | None = None
) -> Response:
    """Record the decision, and redirect to the question. If the decision comes too late or is not enough, return the
    current page of the question. If the browser must sign first, return the challenge. If a signature is refused or
    missing, the page keeps the choice of rows.
    """
    assurance: ev.Assurance = "human"
    # A decided question takes no signature: if the same decision is sent again, the page shows the recorded outcome.
    if request.form_value("decision") == "sign" and record.card.is_open:
        try:
            challenge = await take_signature(request, record, decision)
        except SignatureRefused as error:
            remark, now = describe_refusal(error), await find_question_of(request)
            return await render_question(request, now, remark, choice=choice)
        if challenge is not None:
            return challenge
        assurance = "signed"
    digest = request.form_value("digest")
    try:
        execution = await record_decision(request, record, decision, digest, wait_s=WAIT_S, assurance=assurance)
    except _TOO_LATE as error:
        remark = Remark(capitalize(error.message), http_status(error))
        return await render_question(request, await find_question_of(request), remark)
    after = execution.suspensions[record.suspension_id]
    if after.is_open and all(vote.principal != request.session.principal for vote in after.endorsements):
        current = await find_question_of(request)
        if decision.modified_args is not None and can_sign(request, current):
            text = f"This is revision {current.question.revision}, with your changes. It waits for your signature."
            return await render_question(request, current, Remark(text, tone="plain"), choice=choice)
        text = "Your approval is not enough for this call; the question stays open."
        return await render_question(request, current, Remark(text, 409))
    return request.redirect(f"/suspensions/{record.suspension_id}")


def build_question_fields(request: InboxRequest, record: QuestionRecord) -> tuple[Field, ...]:
    """Return the fields of the form that the question asks for, or of the arguments that a person may edit."""
    question = record.question
    if record.card.answer_kind == "form":
        return build_form_fields(question.form or {})
    definition = request.service.tools.get(question.tool_name or "")
    if definition is None or not record.card.may_edit:
        return ()
    return build_fields(definition.input_schema, question.arguments or {})[:MAX_FIELDS]
