"""The page of one question, and the decision that a person sends from it.

The form carries the digest of the revision that the page showed. The engine compares that digest again in the
transaction that records the decision. A person who edits arguments approves them in a second step, on a page that shows
the difference.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue
from starlette.responses import Response
from starlette.routing import BaseRoute

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.canonical import canonical_json, read_json
from planwarden.agent.common.errors import (
    AlreadyDecided,
    Expired,
    InvalidArguments,
    LimitExceeded,
    StaleDefinition,
    StaleRevision,
)
from planwarden.agent.core import events as ev
from planwarden.server.inbox.decision import WAIT_S, find_missing_tools, record_decision
from planwarden.server.inbox.forms import (
    FilledForm,
    InputField,
    build_argument_fields,
    build_form_fields,
    fill_form,
    format_texts,
    is_changed,
    read_answer,
)
from planwarden.server.inbox.keys.signing import can_sign, find_signing_obstacle, take_signature
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.questions import QuestionRecord, build_question_token, find_next_waiting, find_question
from planwarden.server.inbox.request import BadForm, InboxRequest, form_route, http_status, page_route
from planwarden.server.inbox.site import InboxSite
from planwarden.server.inbox.value_view import find_changes
from planwarden.server.signatures.signature import SignatureRefused
from planwarden.server.views.facts import escape_text

_APPROVING = ("approve", "sign")
_TOO_LATE = (AlreadyDecided, Expired, StaleDefinition, StaleRevision)


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence above the question."""

    text: str
    tone: str = "warn"


def build_question_routes(site: InboxSite) -> Sequence[BaseRoute]:
    path = f"{INBOX_PATH}/suspensions/{{suspension_id}}"
    return (
        page_route(site, path, show_question),
        page_route(site, f"{path}/standing", show_status),
        form_route(site, f"{path}/decision", decide),
    )


async def show_question(request: InboxRequest) -> Response:
    return await _render_question(request, await _find_question(request))


async def show_status(request: InboxRequest) -> Response:
    """The part of the page that shows the status; 204 if the page already shows the current one."""
    record = await _find_question(request)
    if request.http.query_params.get("seen") == build_question_token(record):
        return Response(status_code=204)
    was_open = request.http.query_params.get("open") == "yes"
    return request.render_page("_status.html", **await _build_status_values(request, record), is_news=was_open)


async def decide(request: InboxRequest) -> Response:
    """Approve, reject, or show the difference first."""
    record = await _find_question(request)
    verdict, digest = request.form_value("decision"), request.form_value("digest")
    if verdict not in ("approve", "reject", "review", "edit", "sign") or len(digest) != 64:
        raise BadForm
    if not record.view.is_open and verdict in ("review", "edit"):
        raise AlreadyDecided("this question has been decided in the meantime")
    if record.view.is_open and digest != record.view.digest:
        text = "This question was revised since you looked at it. This page shows it as it is now; nothing was decided."
        return await _render_question(request, record, Remark(text=text), status=409)
    if verdict == "reject":
        return await _record(request, record, Decision(approved=False, reason=_read_reason(request)))
    if record.view.kind == "reconcile":
        return await _reconcile(request, record)
    if record.suspension.question.form is not None:
        return await _submit_form(request, record, verdict)
    return await _approve(request, record, verdict)


async def _approve(request: InboxRequest, record: QuestionRecord, verdict: str) -> Response:
    """Approve the call as shown, or with edits whose difference the person has seen."""
    fields = _build_fields(request, record)
    before = record.suspension.question.arguments or {}
    filled = _read_edits(request, fields, before)
    if filled.faults:
        return await _render_question(request, record, _build_fault_remark(), filled=filled, status=422)
    if not is_changed(before, filled.values):
        if verdict in _APPROVING:
            return await _record(request, record, Decision(approved=True, reason=_read_reason(request)))
        remark = Remark(text="You changed no argument.", tone="plain") if verdict == "review" else None
        return await _render_question(request, record, remark, filled=filled)
    if verdict == "edit":
        return await _render_question(request, record, filled=filled)
    tool_name = record.suspension.question.tool_name or ""
    completed, faults = request.service.engine.tools.complete(tool_name, filled.values)
    if faults:
        text = f"These arguments do not fit the tool: {escape_text('; '.join(faults[:5]))}"
        return await _render_question(request, record, Remark(text=text, tone="bad"), filled=filled, status=422)
    seen = _hash_edits(record.view.digest, completed)
    if verdict == "approve" and request.form_value("seen") == seen:
        decision = Decision(approved=True, reason=_read_reason(request), modified_args=completed)
        return await _record(request, record, decision)
    return request.render_page(
        "changes.html",
        question=record.view,
        changes=find_changes(before, completed),
        edited=canonical_json(completed),
        seen=seen,
        reason=request.form_value("reason"),
        can_sign=can_sign(request, record),
    )


async def _submit_form(request: InboxRequest, record: QuestionRecord, verdict: str) -> Response:
    """Answer a question that asks for a form."""
    fields = _build_fields(request, record)
    filled = fill_form(fields, request.form_values())
    if filled.faults or verdict not in _APPROVING:
        remark = _build_fault_remark() if filled.faults else None
        return await _render_question(request, record, remark, filled=filled, status=422)
    try:
        return await _record(request, record, Decision(approved=True, content=read_answer(fields, filled)))
    except InvalidArguments as error:
        remark = Remark(text=error.message, tone="bad")
        return await _render_question(request, record, remark, filled=filled, status=422)


async def _reconcile(request: InboxRequest, record: QuestionRecord) -> Response:
    """Record whether a call without a result took effect."""
    happened, text = request.form_value("happened"), request.form_value("result").strip()
    if happened not in ("yes", "no"):
        return await _render_question(request, record, Remark(text="Choose whether it happened."), status=422)
    content: dict[str, JsonValue] = {"happened": happened == "yes"}
    if happened == "yes" and text:
        try:
            content["result"] = read_json(text)
        except (InvalidArguments, LimitExceeded) as error:
            remark = Remark(text=f"The result is {escape_text(error.message)}", tone="bad")
            return await _render_question(request, record, remark, status=422)
    return await _record(request, record, Decision(approved=True, content=content))


async def _record(request: InboxRequest, record: QuestionRecord, decision: Decision) -> Response:
    """Record the decision. If another decision came first, the page shows that one."""
    assurance: ev.Assurance = "human"
    # A decided question takes no signature: the same decision again returns the recorded outcome.
    if request.form_value("decision") == "sign" and record.view.is_open:
        try:
            challenge = await take_signature(request, record, decision)
        except SignatureRefused as error:
            remark = Remark(text=_capitalize(escape_text(error.message)), tone="bad")
            return await _render_question(request, await _find_question(request), remark, status=http_status(error))
        if challenge is not None:
            return challenge
        assurance = "signed"
    digest = request.form_value("digest")
    try:
        execution = await record_decision(request, record, decision, digest, wait_s=WAIT_S, assurance=assurance)
    except _TOO_LATE as error:
        remark = Remark(text=_capitalize(error.message))
        return await _render_question(request, await _find_question(request), remark, status=http_status(error))
    still_open = next((s for s in execution.suspensions if s.suspension_id == record.row.suspension_id), None)
    if still_open is not None and all(v.principal != request.session.principal for v in still_open.endorsements):
        current = await _find_question(request)
        if decision.modified_args is not None and can_sign(request, current):
            text = f"This is revision {current.view.revision}, with your changes. It waits for your signature."
            return await _render_question(request, current, Remark(text=text, tone="plain"))
        text = "Your approval does not suffice for this call; the question stays open."
        return await _render_question(request, current, Remark(text=text), status=409)
    return request.redirect(f"/suspensions/{record.row.suspension_id}")


async def _find_question(request: InboxRequest) -> QuestionRecord:
    return await find_question(request.service, request.http.path_params["suspension_id"])


async def _render_question(
    request: InboxRequest,
    record: QuestionRecord,
    remark: Remark | None = None,
    *,
    filled: FilledForm | None = None,
    status: int = 200,
) -> Response:
    is_open, may_sign = record.view.is_open, can_sign(request, record)
    return request.render_page(
        "question.html",
        status=status,
        remark=remark,
        fields=_build_fields(request, record) if is_open else (),
        filled=filled,
        is_editing=filled is not None,
        is_form=record.suspension.question.form is not None,
        can_approve=_can_approve(request, record),
        can_sign=may_sign,
        obstacle=await find_signing_obstacle(request, record) if may_sign else None,
        missing=tuple(map(escape_text, find_missing_tools(request.service, record.execution))) if is_open else (),
        is_news=False,
        **await _build_status_values(request, record),
    )


async def _build_status_values(request: InboxRequest, record: QuestionRecord) -> dict[str, Any]:
    """What `_status.html` needs."""
    next_id, others = await find_next_waiting(request.service, record)
    return {
        "question": record.view,
        "execution": record.execution,
        "seen": build_question_token(record),
        "next_id": next_id,
        "others": others,
    }


def _can_approve(request: InboxRequest, record: QuestionRecord) -> bool:
    """Whether this person's approval counts; if not, the page disables the button."""
    policy, question = request.service.engine.grants.policy, record.suspension.question
    name, owner = request.session.principal, record.row.principal
    votes = record.suspension.endorsements if question.form is None else ()
    # Whoever answered a form may answer it differently; whoever said yes has nothing to add.
    has_voted = any(policy.person(vote.principal) == policy.person(name) for vote in votes)
    return not has_voted and not question.undecidable and policy.worth("human", name, owner, question.needs) is not None


def _build_fields(request: InboxRequest, record: QuestionRecord) -> tuple[InputField, ...]:
    question = record.suspension.question
    if question.kind == "reconcile":
        return ()
    if question.form is not None:
        return build_form_fields(question.form)
    definition = request.service.engine.tools.get(question.tool_name or "")
    if definition is None or question.arguments is None or question.asker:
        return ()
    return build_argument_fields(definition.input_schema, question.arguments)


def _read_edits(request: InboxRequest, fields: Sequence[InputField], before: Mapping[str, JsonValue]) -> FilledForm:
    """The values of the inputs, or those that the page with the difference sends; arguments without an input stay."""
    edited = request.form_value("edited")
    if not edited:
        filled, names = fill_form(fields, request.form_values()), {field.name for field in fields}
        unchanged = {name: value for name, value in before.items() if name not in names}
        return replace(filled, values={**unchanged, **filled.values})
    values = read_json(edited)
    if not isinstance(values, dict):
        raise BadForm
    return FilledForm(values=values, texts=format_texts(fields, values))


def _read_reason(request: InboxRequest) -> str | None:
    return request.form_value("reason").strip() or None


def _hash_edits(digest: str, arguments: dict[str, JsonValue]) -> str:
    """Only the page with the difference holds this hash, so a person cannot approve edits before that page."""
    return hashlib.sha256(f"{digest}\0{canonical_json(arguments)}".encode()).hexdigest()


def _build_fault_remark() -> Remark:
    return Remark(text="Some fields need another look; nothing was decided.", tone="bad")


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
