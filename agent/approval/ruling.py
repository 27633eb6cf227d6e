"""Turn an answer into events: who may decide what, and what the answer means.

Rejecting needs no authority beyond owning the execution; approving needs the assurance that the question asks for. An
answer is accepted once: the same answer again is recognised, a different one is refused. The store checks the same
conditions again in the transaction that records the answer.
"""

from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority, Decision, can_decide, check_form, read_reply
from planwarden.agent.approval.batch import check_chosen_rows
from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.approval.grants import MAKERS
from planwarden.agent.approval.review import edit_plan, find_cover_needs, read_review, revise_stale_review
from planwarden.agent.approval.revisions import revise_arguments, revise_stale_question
from planwarden.agent.common.canonical import digest, is_same_json
from planwarden.agent.common.errors import (
    AlreadyAnswered,
    AlreadyDecided,
    EditRefused,
    Expired,
    InvalidArguments,
    PlanwardenError,
    StaleDefinition,
    StaleRevision,
    UndecidableHere,
    UnknownSuspension,
)
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.agent.core.plan.plan_parser import PlanIntake
from planwarden.agent.core.replies import build_reply_events
from planwarden.agent.ports.store import Guard

MAX_NAMED_QUESTIONS = 5
"""The most open questions that the refusal of a different second answer names."""


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer leads to."""

    events: tuple[ev.Event, ...] = ()
    """Appended together; empty when nothing changes."""
    guard: Guard | None = None
    is_accepted: bool = True
    """False when a person still has to decide."""
    refusal: PlanwardenError | None = None
    """Why the answer does not count, if the question had to be revised; to be raised once the events are stored."""


def rule_on_answer(
    context: ApprovalContext,
    execution: ExecutionState,
    suspension_id: str,
    answer: Decision,
    authority: Authority,
    *,
    plans: PlanIntake,
    now: float,
) -> Ruling:
    """Return the events that the answer causes; `plans` reads a plan that the answer contains.

    Raises:
        UnknownSuspension, AlreadyDecided, Expired, StaleRevision, EditRefused, UndecidableHere, InvalidArguments,
            LimitExceeded: nothing changes. The caller has bounded the answer with `check_size`.
        EarlierNeeded, ParsingNeeded: as `plans.read` raises them.
    """
    suspension = execution.suspensions.get(suspension_id)
    if suspension is None or suspension.question.addressee == "clock":
        raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r} in this thread")
    question = suspension.question
    if not suspension.is_open:
        return _rule_on_repeated_answer(context, execution, suspension, answer)
    if question.expires_at is not None and question.expires_at <= now:
        raise Expired(f"the time to answer suspension {suspension_id!r} has passed")
    if authority.digest not in (None, question.digest):
        # Somebody may have sent an approval with edits twice: then the first copy has revised the question.
        same = ev.RecordedDecision(approved=True, content=answer.content)
        is_repeated = answer.modified_args is not None and _is_same(context, question, same, answer)
        if is_repeated and context.policy.person(authority.principal) in _find_voters(context, suspension, answer):
            return Ruling(is_accepted=False)
        raise StaleRevision(
            f"suspension {suspension_id!r} was revised to revision {question.revision} since it was shown; look again",
            details={"revision": question.revision, "digest": question.digest},
        )
    guard = Guard(suspension_id=question.suspension_id, digest=question.digest)
    is_caller = question.addressee == "caller"
    if answer.approved is False and not (is_caller and answer.content is not None):
        decision = ev.RecordedDecision(approved=False, reason=answer.reason)
        return Ruling(events=(_build_decided(question, decision, authority),), guard=guard)
    if is_caller:
        return Ruling(events=_build_caller_events(question, answer, authority, plans), guard=guard)
    return _Approval(context, execution, suspension, answer, authority, plans, guard).rule()


def _build_caller_events(
    question: ev.Question, answer: Decision, authority: Authority, plans: PlanIntake
) -> tuple[ev.Event, ...]:
    purpose = question.traits.purpose or "step"
    replied = build_reply_events(
        read_reply(purpose, answer.content),
        purpose=purpose,
        step_id=question.step_id,
        plans=plans,
        suspension_id=question.suspension_id,
    )
    # The reply's events hold the content itself. Its digest in the decision lets the same answer be recognised later.
    decided = _build_decided(question, ev.RecordedDecision(approved=True, content=digest(answer.content)), authority)
    return (decided, *replied)


class _Approval(NamedTuple):
    """An approval of a question to a person, perhaps with edited arguments or an edited plan."""

    context: ApprovalContext
    execution: ExecutionState
    suspension: SuspensionState
    answer: Decision
    authority: Authority
    plans: PlanIntake
    guard: Guard

    def rule(self) -> Ruling:
        question, answer, authority, guard = self.suspension.question, self.answer, self.authority, self.guard
        _check_approval(question, answer)
        revise = revise_stale_review if question.kind == "review" else revise_stale_question
        stale = revise(self.context, self.execution, question)
        if stale is not None:
            return _refuse_stale(question, *stale, guard)
        final, revisions = self._edit(question)
        if revisions:
            _check_may_void_votes(self.suspension, authority)
        worth = self._find_worth(final)
        if worth is None:
            # Somebody who may not approve may still edit arguments, but not a plan.
            edits = () if question.kind == "review" else revisions
            return Ruling(events=edits, guard=guard if edits else None, is_accepted=False)
        voters = set[str]() if revisions else _find_voters(self.context, self.suspension, answer)
        if final.quorum > 1 and worth != "embedder":
            if self.context.policy.person(authority.principal) in voters:
                return Ruling(is_accepted=False)
            if len(voters) + 1 < final.quorum:
                about = {"suspension_id": final.suspension_id, "digest": final.digest, "assurance": worth}
                endorsed = copy_fields(ev.SuspensionEndorsed, authority, content=answer.content, **about)
                return Ruling(events=(*revisions, endorsed), guard=guard, is_accepted=False)
        decision = ev.RecordedDecision(
            approved=True,
            reason=answer.reason,
            modified_args=_read_final_arguments(final, answer) if revisions else None,
            content=answer.content,
        )
        decided = _build_decided(final, decision, replace(authority, assurance=worth))
        return Ruling(events=(*revisions, decided), guard=guard)

    def _find_worth(self, question: ev.Question) -> ev.Assurance | None:
        """Return the assurance that the approval counts as; None if the question, or what it covers, needs more."""
        policy, execution, authority = self.context.policy, self.execution, self.authority
        worth = can_decide(policy, execution, question.needs, authority.principal, authority.assurance)
        if worth is None or question.kind != "review" or not read_review(self.answer)[1]:
            return worth
        needs = find_cover_needs(self.context, execution, question)
        return can_decide(policy, execution, needs, authority.principal, authority.assurance)

    def _edit(self, question: ev.Question) -> tuple[ev.Question, tuple[ev.Event, ...]]:
        """Return the question with the answer's arguments or plan, and the events of that revision, if any."""
        context, execution, answer, authority = self.context, self.execution, self.answer, self.authority
        if question.kind == "review":
            if self._find_worth(question) is None:
                return question, ()
            return edit_plan(context, execution, question, answer, authority, self.plans)
        if answer.modified_args is None:
            return question, ()
        changed = revise_arguments(context, execution, question, answer.modified_args, authority)
        if changed is question:
            return question, ()
        editor = "the calling model" if authority.assurance in ev.MODEL_ASSURANCES else authority.principal
        reason = f"arguments edited by {editor} through {authority.channel}"
        return changed, (ev.SuspensionRevised(question=changed, reason=reason),)


def _find_voters(context: ApprovalContext, suspension: SuspensionState, answer: Decision) -> set[str]:
    """Return the people who have given exactly this answer to the question as it is."""
    question, content = suspension.question, answer.content
    votes = (vote for vote in suspension.endorsements if _is_same_content(question, vote.content, content))
    return {context.policy.person(vote.principal) for vote in votes}


def _check_approval(question: ev.Question, answer: Decision) -> None:
    """Raise `UndecidableHere` or `InvalidArguments` for an approval that cannot count, no matter who gives it."""
    if question.undecidable:
        raise UndecidableHere(
            f"suspension {question.suspension_id!r} cannot be approved here, only rejected: {question.undecidable}"
        )
    if question.kind == "batch":
        check_chosen_rows(question, answer.content)
    if question.form is not None:
        check_form(question.form, answer.content)
    elif answer.approved is None:
        raise InvalidArguments("the decision does not say whether it is approved")
    if question.kind == "review":
        read_review(answer)


def _read_final_arguments(final: ev.Question, answer: Decision) -> dict[str, JsonValue] | None:
    """Return the edited arguments as they will run: those of the call, or those of each edited row by its index."""
    if not final.rows:
        return final.arguments
    return {key: final.rows[int(key)].arguments for key in answer.modified_args or {}}


def _check_may_void_votes(suspension: SuspensionState, authority: Authority) -> None:
    """Raise `EditRefused` if the edit would void approvals by people, but is not itself made by a person."""
    if suspension.endorsements and authority.assurance not in MAKERS:
        voters = ", ".join(repr(vote.principal) for vote in suspension.endorsements)
        raise EditRefused(
            f"suspension {suspension.question.suspension_id!r} keeps its arguments: {voters} approved them, and an "
            f"edit of assurance {authority.assurance!r} cannot void that; a person can edit them in the inbox or at "
            "a terminal, or reject the question"
        )


def _refuse_stale(question: ev.Question, revised: ev.Question, reason: str, guard: Guard) -> Ruling:
    text = (
        f"{reason}; suspension {question.suspension_id!r} is now revision {revised.revision}: look again, then decide"
    )
    return Ruling(
        events=(ev.SuspensionRevised(question=revised, reason=reason),),
        guard=guard,
        is_accepted=False,
        refusal=StaleDefinition(text, details={"revision": revised.revision, "digest": revised.digest}),
    )


def _build_decided(question: ev.Question, decision: ev.RecordedDecision, authority: Authority) -> ev.SuspensionDecided:
    about = {"suspension_id": question.suspension_id, "digest": question.digest}
    return copy_fields(ev.SuspensionDecided, authority, decision=decision, **about)


def _rule_on_repeated_answer(
    context: ApprovalContext, execution: ExecutionState, suspension: SuspensionState, answer: Decision
) -> Ruling:
    """Return an empty ruling for the same answer; else raise `AlreadyAnswered`, `AlreadyDecided` or `Expired`."""
    suspension_id, decision = suspension.question.suspension_id, suspension.decision
    if suspension.status == "timed_out":
        raise Expired(f"the time to answer suspension {suspension_id!r} has passed")
    if suspension.status == "withdrawn" or decision is None:
        why = "its execution is over" if decision is None else decision.reason
        raise AlreadyDecided(f"suspension {suspension_id!r} was withdrawn: {why}")
    if _is_same(context, suspension.question, decision, answer):
        return Ruling()
    if suspension.question.addressee == "caller":
        raise _build_already_answered(execution, suspension_id)
    verdict = "approved" if decision.approved else "rejected"
    raise AlreadyDecided(
        f"suspension {suspension_id!r} was {verdict} before; the first answer counts",
        details={"approved": decision.approved, "channel": suspension.channel or ""},
    )


def _build_already_answered(execution: ExecutionState, suspension_id: str) -> AlreadyAnswered:
    """Return the error for a different answer to a closed question; the error names the open questions."""
    addressed = (item.question for item in execution.open_suspensions if item.question.addressee == "caller")
    questions = list(islice(addressed, MAX_NAMED_QUESTIONS))
    names = ", ".join(
        question.suspension_id + (f" (step {question.step_id})" if question.step_id else "") for question in questions
    )
    advice = f"answer the open question {names}" if names else "no question to you is open; call get_execution"
    return AlreadyAnswered(
        f"question {suspension_id!r} was answered before, so this answer changed nothing; {advice}",
        details={"open": [question.suspension_id for question in questions]},
    )


def _is_same(context: ApprovalContext, question: ev.Question, decision: ev.RecordedDecision, answer: Decision) -> bool:
    if (answer.approved is not False) != decision.approved:
        return False
    if not decision.approved:
        return True
    if question.addressee == "caller":
        return digest(answer.content) == decision.content
    if not _is_same_content(question, answer.content, decision.content):
        return False
    edits, recorded = answer.modified_args, decision.modified_args
    if edits is None:
        return recorded is None
    # An edit that changed nothing was not recorded; the question has the arguments as they ran.
    if question.rows:
        rows = {str(index): row for index, row in enumerate(question.rows)}
        is_about_same = edits.keys() <= rows.keys() and (recorded is None or recorded.keys() == edits.keys())
        return is_about_same and all(
            _is_completed_to(context, rows[key].tool_name, edits[key], rows[key].arguments) for key in edits
        )
    return _is_completed_to(
        context, question.tool_name or "", edits, question.arguments if recorded is None else recorded
    )


def _is_same_content(question: ev.Question, one: JsonValue, other: JsonValue) -> bool:
    """Return whether both contents are equal or choose the same rows of the question, in any order."""
    rows, other_rows = (sorted(question.choose_rows(content)) for content in (one, other))
    return rows == other_rows if question.rows else is_same_json(one, other)


def _is_completed_to(context: ApprovalContext, tool_name: str, edits: JsonValue, recorded: JsonValue) -> bool:
    """Return whether `edits` are the recorded arguments, perhaps still without the defaults of the tool's schema."""
    if is_same_json(edits, recorded):
        return True
    if not isinstance(edits, dict) or context.tools.get(tool_name) is None:
        return False
    return is_same_json(context.tools.complete(tool_name, edits)[0], recorded)
