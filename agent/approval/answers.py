"""From an answer to events: who may decide what, and what the answer means.

Rejecting needs no authority beyond owning the execution; approving needs the assurance that the question asks for. An
answer is accepted once: the same answer again is recognised, a different one is refused. The store checks the same
conditions again in the transaction that records it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json, check_depth, is_larger
from planwarden.agent.common.errors import (
    AlreadyDecided,
    Expired,
    InvalidArguments,
    LimitExceeded,
    PlanwardenError,
    StaleDefinition,
    StaleRevision,
    UnknownSuspension,
)
from planwarden.agent.common.schema import Schema
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_input import MAX_STEPS
from planwarden.agent.core.replies import Reply, build_reply_events, read_calls
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.agent.ports.policy import Policy
from planwarden.agent.ports.store import Guard
from planwarden.agent.runtime.dispatch import Dispatcher

MAX_REASON_CHARS = 2_000
MAX_CONTENT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What somebody answered, before its authority is judged."""

    approved: bool | None = None
    """True or false and nothing else; not needed when `content` answers the question."""
    reason: str | None = None
    """Told to the model, and kept in the log."""
    modified_args: dict[str, JsonValue] | None = None
    """Replaces the arguments that were shown; checked against the tool's schema."""
    content: JsonValue = None
    """The filled-in form, or a caller's answer to a prompt."""

    def __post_init__(self) -> None:
        """Nothing but true and false is ever an approval; raises `InvalidArguments` for the string "false"."""
        if type(self.approved) not in (bool, type(None)):
            raise InvalidArguments(f"'approved' is {self.approved!r}; send the JSON boolean true or false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Through which door an answer came, and what that proves."""

    assurance: ev.Assurance
    channel: str
    principal: str
    digest: str | None = None
    """Digest of the revision that was shown; None when the door does not carry it."""
    rendered: str = ""
    """SHA-256 of the text that was shown; empty when the door does not know it."""
    client_id: str | None = None
    """The OAuth client through which the principal came; None when there is none, or it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What an answer leads to."""

    events: tuple[ev.Event, ...] = ()
    """To be appended together; empty when nothing changes."""
    guard: Guard | None = None
    accepted: bool = True
    """False when a person still has to decide."""
    refusal: PlanwardenError | None = None
    """Why the answer does not count, when the question had to be revised first; to be raised after the events."""


class Answers:
    """Rules on answers; holds no state of its own."""

    def __init__(self, dispatcher: Dispatcher, gate: Policy, *, max_steps: int = MAX_STEPS) -> None:
        self._dispatcher = dispatcher
        self._gate = gate
        self._max_steps = max_steps

    def rule(
        self,
        execution: ExecutionState,
        suspension_id: str,
        answer: Decision,
        authority: Authority,
        *,
        tools: Mapping[str, ToolFacts],
        now: float,
    ) -> Ruling:
        """The events that the answer causes.

        Raises:
            UnknownSuspension, AlreadyDecided, Expired, StaleRevision, InvalidArguments, LimitExceeded: nothing changes.
        """
        suspension = execution.suspensions.get(suspension_id)
        if suspension is None or suspension.question.addressee == "clock":
            raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r} in this thread")
        _check_size(answer)
        question = suspension.question
        if not suspension.is_open:
            return _again(suspension, answer)
        if question.expires_at is not None and question.expires_at <= now:
            raise Expired(f"the time to answer suspension {suspension_id!r} has passed")
        if authority.digest is not None and authority.digest != question.digest:
            raise StaleRevision(
                f"suspension {suspension_id!r} was revised to revision {question.revision} since it was shown; look again",
                details={"revision": question.revision, "digest": question.digest},
            )
        if question.addressee == "caller":
            return self._caller(suspension, answer, authority, tools)
        return self._person(execution, suspension, answer, authority)

    def _caller(
        self, suspension: SuspensionState, answer: Decision, authority: Authority, tools: Mapping[str, ToolFacts]
    ) -> Ruling:
        question = suspension.question
        guard = Guard(suspension_id=question.suspension_id, digest=question.digest)
        if answer.approved is False and answer.content is None:
            decision = ev.RecordedDecision(approved=False, reason=answer.reason)
            return Ruling(events=(_decided(question, decision, authority),), guard=guard)
        purpose: ev.Purpose = (
            "plan" if question.kind == "plan" else "synthesize" if question.kind == "synthesis" else "step"
        )
        reply = _reply(purpose, answer.content)
        # The content itself is journalled as the model's reply; the decision only says that it came.
        decided = _decided(question, ev.RecordedDecision(approved=True), authority)
        replied = build_reply_events(
            reply,
            purpose=purpose,
            step_id=question.step_id,
            tools=tools,
            max_steps=self._max_steps,
            suspension_id=question.suspension_id,
        )
        return Ruling(events=(decided, *replied), guard=guard)

    def _person(
        self,
        execution: ExecutionState,
        suspension: SuspensionState,
        answer: Decision,
        authority: Authority,
    ) -> Ruling:
        question = suspension.question
        if answer.approved is False:
            decision = ev.RecordedDecision(approved=False, reason=answer.reason)
            guard = Guard(suspension_id=question.suspension_id, digest=question.digest)
            return Ruling(events=(_decided(question, decision, authority),), guard=guard)
        if question.form is not None:
            _check_form(question.form, answer.content)
        elif answer.approved is None:
            raise InvalidArguments("the decision has no 'approved'; send true or false")
        guard = Guard(suspension_id=question.suspension_id, digest=question.digest)
        stale = self._dispatcher.questions.current(execution, question)
        if stale is not None:
            return _stale(question, *stale, guard)
        final, revised = self._edited(execution, question, answer, authority)
        worth = self._gate.worth(authority.assurance, authority.principal, execution.principal, final.needs)
        if worth is None:
            return Ruling(events=revised, guard=guard if revised else None, accepted=False)
        voters = set[str]() if revised else {self._gate.person(vote.principal) for vote in suspension.endorsements}
        if final.quorum > 1 and worth != "embedder":
            if self._gate.person(authority.principal) in voters:
                return Ruling(accepted=False)
            if len(voters) + 1 < final.quorum:
                return Ruling(events=(*revised, _endorsed(final, authority, worth)), guard=guard, accepted=False)
        decision = ev.RecordedDecision(
            approved=True,
            reason=answer.reason,
            modified_args=final.arguments if revised else None,
            content=answer.content,
        )
        return Ruling(events=(*revised, _decided(final, decision, replace(authority, assurance=worth))), guard=guard)

    def _edited(
        self, execution: ExecutionState, question: ev.Question, answer: Decision, authority: Authority
    ) -> tuple[ev.Question, tuple[ev.Event, ...]]:
        """The question with the answer's arguments, and the event of that revision if they are different."""
        if answer.modified_args is None:
            return question, ()
        changed = self._dispatcher.questions.revised(execution, question, answer.modified_args)
        if canonical_json(changed.arguments) == canonical_json(question.arguments):
            return question, ()
        reason = f"arguments edited through {authority.channel}"
        return changed, (ev.SuspensionRevised(question=changed, reason=reason),)


def _stale(question: ev.Question, revised: ev.Question, reason: str, guard: Guard) -> Ruling:
    return Ruling(
        events=(ev.SuspensionRevised(question=revised, reason=reason),),
        guard=guard,
        accepted=False,
        refusal=StaleDefinition(
            f"{reason}; suspension {question.suspension_id!r} is now revision {revised.revision}: look again, then decide",
            details={"revision": revised.revision, "digest": revised.digest},
        ),
    )


def _endorsed(question: ev.Question, authority: Authority, worth: ev.Assurance) -> ev.SuspensionEndorsed:
    return ev.SuspensionEndorsed(
        suspension_id=question.suspension_id,
        assurance=worth,
        channel=authority.channel,
        principal=authority.principal,
        digest=question.digest,
        rendered=authority.rendered,
    )


def _decided(question: ev.Question, decision: ev.RecordedDecision, authority: Authority) -> ev.SuspensionDecided:
    return ev.SuspensionDecided(
        suspension_id=question.suspension_id,
        decision=decision,
        assurance=authority.assurance,
        channel=authority.channel,
        principal=authority.principal,
        digest=question.digest,
        rendered=authority.rendered,
    )


def _again(suspension: SuspensionState, answer: Decision) -> Ruling:
    """The recorded outcome for the same answer; a refusal for a different one."""
    suspension_id, decision = suspension.question.suspension_id, suspension.decision
    if suspension.status == "timed_out":
        raise Expired(f"the time to answer suspension {suspension_id!r} has passed")
    if suspension.status == "withdrawn" or decision is None:
        why = "its execution is over" if decision is None else decision.reason
        raise AlreadyDecided(f"suspension {suspension_id!r} was withdrawn: {why}")
    approves = answer.approved is not False
    same = approves == decision.approved and (
        suspension.question.addressee == "caller"
        or not decision.approved
        or (
            canonical_json(answer.content) == canonical_json(decision.content)
            and (
                answer.modified_args is None
                if decision.modified_args is None
                else canonical_json(answer.modified_args) == canonical_json(decision.modified_args)
            )
        )
    )
    if not same:
        verdict = "approved" if decision.approved else "rejected"
        raise AlreadyDecided(
            f"suspension {suspension_id!r} was {verdict} before; the first answer stands",
            details={"approved": decision.approved, "channel": suspension.channel or ""},
        )
    return Ruling()


def _reply(purpose: ev.Purpose, content: JsonValue) -> Reply:
    """The caller's content in the form of a model's reply; raises `InvalidArguments` for any other shape."""
    if isinstance(content, str) and content.strip():
        return Reply(content=content)
    expected = {
        "plan": 'an object {"todoList": [...]}',
        "step": 'an object {"toolCalls": [...]} or {"content": "..."}',
        "synthesize": 'an object {"content": "..."}',
    }[purpose]
    if not isinstance(content, dict):
        raise InvalidArguments(f"the content is not {expected}")
    if purpose == "plan":
        return Reply(plan=content)
    listed, text = content.get("toolCalls"), content.get("content")
    patch = content.get("revise")
    unknown = content.keys() - ({"toolCalls", "content", "revise"} if purpose == "step" else {"content"})
    if unknown or (text is not None and not isinstance(text, str)):
        raise InvalidArguments(f"the content is not {expected}; unknown keys: {sorted(unknown)}")
    if listed is not None and purpose == "step":
        if not isinstance(listed, list) or len(read_calls(listed)) != len(listed):
            raise InvalidArguments('toolCalls is not a list of {"toolName": "...", "arguments": {...}}, at most 50')
        return Reply(content=text, calls=read_calls(listed), revise=patch)
    if text is None:
        raise InvalidArguments(f"the content is not {expected}")
    return Reply(content=text, revise=patch)


def _check_form(form: dict[str, JsonValue], content: JsonValue) -> None:
    if content is None:
        raise InvalidArguments("this question asks for 'content'", details={"answerSchema": form})
    try:
        faults = Schema(form).find_faults(content)
    except ValueError as error:
        raise InvalidArguments(f"the form of this question is not a usable JSON Schema: {error}") from None
    if faults:
        raise InvalidArguments(
            f"the content does not fit the form: {'; '.join(faults[:5])}", details={"answerSchema": form}
        )


def _check_size(answer: Decision) -> None:
    for value in (answer.content, answer.modified_args):
        if value is not None:
            check_depth(value)
            if is_larger(value, MAX_CONTENT_BYTES):
                raise LimitExceeded(f"the answer is larger than {MAX_CONTENT_BYTES} bytes")
    if answer.reason is not None and len(answer.reason) > MAX_REASON_CHARS:
        raise LimitExceeded(f"the reason has {len(answer.reason)} characters, the limit is {MAX_REASON_CHARS}")
