"""The page of one question, and the decision that is sent from it.

What is decided is the revision that was shown: its digest comes with the form, and the engine compares it again in the
transaction that records the answer. Edited arguments are decided in a second step, after a page that shows the difference.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from planwarden.server.inbox.address import BASE
from planwarden.server.inbox.answer import answer, missing_tools
from planwarden.server.inbox.facts import argument_changes
from planwarden.server.inbox.fields import (
    FilledForm,
    InputField,
    answer_of,
    argument_fields,
    fill,
    form_fields,
    is_changed,
    texts_of,
)
from planwarden.server.inbox.keys.signing import hindrance, may_sign, signature
from planwarden.server.inbox.lookup import FoundQuestion, find_question, next_waiting, standing_token
from planwarden.server.inbox.request import BadForm, InboxRequest, change, page, status_of
from planwarden.server.inbox.site import InboxSite
from planwarden.server.signatures.signature import SignatureRefused
from planwarden.server.views.facts import escape_text

WAIT_S = 1.0
"""How long a decision waits to show what came of it."""

_NOTHING_CHANGED = "No argument was changed."
_APPROVING = ("approve", "sign")
_TOO_LATE = (AlreadyDecided, Expired, StaleDefinition, StaleRevision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A sentence above the question."""

    text: str
    tone: str = "warn"


def question_routes(site: InboxSite) -> Sequence[BaseRoute]:
    where = f"{BASE}/suspensions/{{suspension_id}}"
    return (
        page(site, where, show_question),
        page(site, f"{where}/standing", show_standing),
        change(site, f"{where}/decision", decide),
    )


async def show_question(visit: InboxRequest) -> Response:
    return await _page(visit, await _asked(visit))


async def show_standing(visit: InboxRequest) -> Response:
    """The part of the page that says how things stand; nothing while that is what the page shows already."""
    asked = await _asked(visit)
    if visit.request.query_params.get("seen") == standing_token(asked):
        return Response(status_code=204)
    was_open = visit.request.query_params.get("open") == "yes"
    return visit.page("_standing.html", **_standing(asked), is_news=was_open, **await _following(visit, asked))


async def decide(visit: InboxRequest) -> Response:
    """Approve, reject, or look at the difference first."""
    asked = await _asked(visit)
    verdict, digest = visit.given("decision"), visit.given("digest")
    if verdict not in ("approve", "reject", "review", "edit", "sign") or len(digest) != 64:
        raise BadForm
    if not asked.shown.is_open and verdict in ("review", "edit"):
        raise AlreadyDecided("this question was decided meanwhile")
    if asked.shown.is_open and digest != asked.shown.digest:
        text = "This question was revised since you looked at it. This is how it stands now; nothing was decided."
        return await _page(visit, asked, Remark(text=text), status=409)
    if verdict == "reject":
        return await _decided(visit, asked, Decision(approved=False, reason=visit.given("reason").strip() or None))
    if asked.shown.kind == "reconcile":
        return await _reconciled(visit, asked)
    if asked.found.question.form is not None:
        return await _answered(visit, asked, verdict)
    return await _approved(visit, asked, verdict)


async def _approved(visit: InboxRequest, asked: FoundQuestion, verdict: str) -> Response:
    """Approve as shown, or with edits that were shown as a difference."""
    fields = _fields(visit, asked)
    before = asked.found.question.arguments or {}
    filled = _edits(visit, fields, before)
    if filled.faults:
        return await _page(visit, asked, _faulty(), filled=filled, status=422)
    reason = visit.given("reason").strip() or None
    if not is_changed(before, filled.values):
        if verdict not in _APPROVING:
            remark = Remark(text=_NOTHING_CHANGED, tone="plain") if verdict == "review" else None
            return await _page(visit, asked, remark, filled=filled)
        return await _decided(visit, asked, Decision(approved=True, reason=reason))
    if verdict == "edit":
        return await _page(visit, asked, filled=filled)
    tool_name = asked.found.question.tool_name or ""
    completed, faults = visit.service.engine.tools.complete(tool_name, filled.values)
    if faults:
        text = f"These arguments do not fit the tool: {escape_text('; '.join(faults[:5]))}"
        return await _page(visit, asked, Remark(text=text, tone="bad"), filled=filled, status=422)
    seen = _seen(asked.shown.digest, completed)
    if verdict == "approve" and visit.given("seen") == seen:
        return await _decided(visit, asked, Decision(approved=True, reason=reason, modified_args=completed))
    return visit.page(
        "changes.html",
        question=asked.shown,
        changes=argument_changes(before, completed),
        edited=canonical_json(completed),
        seen=seen,
        reason=visit.given("reason"),
        may_sign=may_sign(visit, asked),
    )


async def _answered(visit: InboxRequest, asked: FoundQuestion, verdict: str) -> Response:
    """Send the filled-in form of a question that has one."""
    fields = _fields(visit, asked)
    filled = fill(fields, visit.fields())
    if filled.faults or verdict not in _APPROVING:
        return await _page(visit, asked, _faulty() if filled.faults else None, filled=filled, status=422)
    try:
        content = answer_of(fields, filled)
        return await _decided(visit, asked, Decision(approved=True, content=content))
    except InvalidArguments as error:
        return await _page(visit, asked, Remark(text=error.message, tone="bad"), filled=filled, status=422)


async def _reconciled(visit: InboxRequest, asked: FoundQuestion) -> Response:
    """Say whether a call without a result took effect."""
    happened, text = visit.given("happened"), visit.given("result").strip()
    if happened not in ("yes", "no"):
        return await _page(visit, asked, Remark(text="Choose whether it happened."), status=422)
    content: dict[str, JsonValue] = {"happened": happened == "yes"}
    if happened == "yes" and text:
        try:
            content["result"] = read_json(text)
        except (InvalidArguments, LimitExceeded) as error:
            remark = Remark(text=f"The result is {escape_text(error.message)}", tone="bad")
            return await _page(visit, asked, remark, status=422)
    return await _decided(visit, asked, Decision(approved=True, content=content))


async def _decided(visit: InboxRequest, asked: FoundQuestion, decision: Decision) -> Response:
    """Record the decision; whoever was first has decided."""
    assurance: ev.Assurance = "human"
    # A question that is over takes no signature: the same answer again is told what was recorded.
    if visit.given("decision") == "sign" and asked.shown.is_open:
        try:
            challenge = await signature(visit, asked, decision)
        except SignatureRefused as error:
            text = _sentence(escape_text(error.message))
            return await _page(visit, await _asked(visit), Remark(text=text, tone="bad"), status=status_of(error))
        if challenge is not None:
            return challenge
        assurance = "signed"
    try:
        view = await answer(visit, asked, decision, visit.given("digest"), wait_s=WAIT_S, assurance=assurance)
    except _TOO_LATE as error:
        fresh = await _asked(visit)
        return await _page(visit, fresh, Remark(text=_sentence(error.message)), status=status_of(error))
    still_open = next((found for found in view.suspensions if found.suspension_id == asked.row.suspension_id), None)
    if still_open is not None and all(v.principal != visit.session.principal for v in still_open.endorsements):
        fresh = await _asked(visit)
        if decision.modified_args is not None and may_sign(visit, fresh):
            text = f"This is revision {fresh.shown.revision}, with your changes; it waits for your signature."
            return await _page(visit, fresh, Remark(text=text, tone="plain"))
        text = "Your approval does not suffice for this call; the question stays open."
        return await _page(visit, fresh, Remark(text=text), status=409)
    return visit.to(f"/suspensions/{asked.row.suspension_id}")


async def _asked(visit: InboxRequest) -> FoundQuestion:
    return await find_question(visit.service, visit.request.path_params["suspension_id"])


async def _page(
    visit: InboxRequest,
    asked: FoundQuestion,
    remark: Remark | None = None,
    *,
    filled: FilledForm | None = None,
    status: int = 200,
) -> Response:
    fields = _fields(visit, asked) if asked.shown.is_open else ()
    return visit.page(
        "question.html",
        status=status,
        question=asked.shown,
        remark=remark,
        fields=fields,
        filled=filled,
        is_editing=filled is not None,
        is_form=asked.found.question.form is not None,
        suffices=_suffices(visit, asked),
        may_sign=may_sign(visit, asked),
        hindrance=await hindrance(visit, asked) if may_sign(visit, asked) else None,
        missing=tuple(map(escape_text, missing_tools(visit.service, asked.execution))) if asked.shown.is_open else (),
        is_news=False,
        **_standing(asked),
        **await _following(visit, asked),
    )


def _standing(asked: FoundQuestion) -> dict[str, Any]:
    return {"shown": asked.shown, "execution": asked.execution, "seen": standing_token(asked)}


async def _following(visit: InboxRequest, asked: FoundQuestion) -> dict[str, Any]:
    following, total = await next_waiting(visit.service, asked.row.suspension_id)
    return {"following": following, "others": total}


def _suffices(visit: InboxRequest, asked: FoundQuestion) -> bool:
    """Whether this person's approval counts, so that nobody presses a button in vain."""
    gate, question = visit.service.engine.grants.gate, asked.found.question
    name, owner = visit.session.principal, asked.row.principal
    has_voted = any(gate.person(vote.principal) == gate.person(name) for vote in asked.found.endorsements)
    return not has_voted and gate.worth("human", name, owner, question.needs) is not None


def _fields(visit: InboxRequest, asked: FoundQuestion) -> tuple[InputField, ...]:
    question = asked.found.question
    if question.kind == "reconcile":
        return ()
    if question.form is not None:
        return form_fields(question.form)
    definition = visit.service.engine.tools.get(question.tool_name or "")
    if definition is None or question.arguments is None or question.asker:
        return ()
    return argument_fields(definition.input_schema, question.arguments)


def _edits(visit: InboxRequest, fields: Sequence[InputField], before: Mapping[str, JsonValue]) -> FilledForm:
    """What stands in the inputs, or what the page with the difference carried on; what has no input stays as it was."""
    carried = visit.given("edited")
    if not carried:
        filled, names = fill(fields, visit.fields()), {found.name for found in fields}
        kept = {name: value for name, value in before.items() if name not in names}
        return replace(filled, values={**kept, **filled.values})
    values = read_json(carried)
    if not isinstance(values, dict):
        raise BadForm
    return FilledForm(values=values, texts=texts_of(fields, values))


def _seen(digest: str, arguments: dict[str, JsonValue]) -> str:
    """Stands in the page with the difference, so that approving comes after it."""
    return hashlib.sha256(f"{digest}\0{canonical_json(arguments)}".encode()).hexdigest()


def _faulty() -> Remark:
    return Remark(text="Some fields need another look; nothing was decided.", tone="bad")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
