"""What became of a decision, told in sentences from the present state of the execution.

A decision is not its outcome. An approved call may fail, and a plan may fail after the call succeeded; neither may be
shown as a success.
"""

from datetime import datetime

import msgspec

from planwarden.agent.core.execution.question import Question, RecordedDecision
from planwarden.agent.core.execution.state import ExecutionState, StepState, SuspensionState
from planwarden.server.views.decisions import describe_proof, describe_shortfall, name_decider, quote_claim
from planwarden.server.views.escaping import ValueView, format_value, shorten_text
from planwarden.server.views.fields import name_rows
from planwarden.server.views.instants import to_utc
from planwarden.server.views.status_text import (
    ERROR_CHARS,
    describe_lost_patience,
    describe_next_attempt,
    describe_outage,
)
from planwarden.server.views.status_words import WAITS, WORDS, Tone

REASON_CHARS = 2_000

_WORST_FIRST: tuple[Tone, ...] = ("bad", "dim", "warn", "busy", "good")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a decision."""

    verdict: str
    """`Approved`, `Rejected`, `Withdrawn`, `Nobody answered in time: rejected`, or the last with `approved`."""
    text: str
    """What happened after the decision, in sentences."""
    tone: Tone
    """`good` only if the step is done and nothing after it went wrong."""
    principal: str
    """Who decided; empty if nobody did."""
    proof: str
    """How they decided and what that proves, in words; for a model's rejection, also the reason that it gave."""
    at: datetime | None
    reason: str
    is_edited: bool
    answer: ValueView | None
    """What a person filled in; None if the answer was only yes or no, or a choice of calls."""
    rows: str
    """Which rows were approved; empty if the question has no rows or none was approved."""


def build_outcome(execution: ExecutionState, suspension: SuspensionState) -> Outcome | None:
    """Return what became of the decision about a question; None while the question is open."""
    if suspension.is_open:
        return None
    verdict, is_approved = _describe_verdict(suspension)
    decided = execution.steps.get(suspension.question.step_id or "")
    asking = {item.question.step_id for item in execution.open_suspensions}
    # A suspended step without an open question waits for nothing: the plan has ended, or is about to go on.
    is_not_waiting = decided is None or (decided.status == "suspended" and decided.step.step_id not in asking)
    steps = [] if decided is None or is_not_waiting else [_describe_step(execution, decided)]
    # The first other step that failed, if any, shows why the plan failed.
    steps += [
        _describe_step(execution, state)
        for state in execution.steps.values()
        if state.status == "failed" and state is not decided
    ][:1]
    ending = _describe_ending(execution)
    tells_failure = execution.status == "failed" and any(tone == "bad" for _, tone in steps)
    parts = [*steps, *([] if tells_failure else [ending])]
    tones = [tone for _, tone in (*parts, ending)]
    worst: Tone = next(tone for tone in _WORST_FIRST if tone in tones)
    text = " ".join(sentence for sentence, _ in parts if sentence)
    decision, question = suspension.decision, suspension.question
    is_decided = suspension.status == "decided" and decision is not None
    chooses_calls = question.traits.releases in ("rows", "planned_calls")
    content = None if decision is None or chooses_calls else decision.content
    return Outcome(
        verdict=verdict,
        text=text,
        tone=worst if is_approved else "bad",
        principal=name_decider(suspension.principal, suspension.assurance) if is_decided else "",
        proof=describe_proof(suspension.assurance or "", suspension.channel or "") + quote_claim(suspension)
        if is_decided
        else "",
        at=None if suspension.decided_at is None else to_utc(suspension.decided_at),
        reason=shorten_text((decision.reason or "") if decision is not None else "", REASON_CHARS),
        is_edited=decision is not None and decision.modified_args is not None,
        answer=None if content is None else ValueView(content),
        rows=_name_approved_rows(question, decision) if question.rows and decision is not None else "",
    )


def _name_approved_rows(question: Question, decision: RecordedDecision) -> str:
    """Return which rows an approval chose, as people count them; empty for a rejection."""
    if not decision.approved:
        return ""
    count, rows = len(question.rows), question.choose_rows(decision.content)
    if len(rows) == count:
        return f"all {count} rows"
    return f"{name_rows(rows)} of {count}, without {name_rows([row for row in range(count) if row not in rows])}"


def _describe_ending(execution: ExecutionState) -> tuple[str, Tone]:
    """Return how the whole plan ended or what it waits for, as a sentence; empty while it runs."""
    lost = describe_lost_patience(execution)
    if lost is not None:
        return f"The plan stopped: {lost}.", "bad"
    if execution.wakes_at is not None:
        return f"The plan {describe_next_attempt(execution) or WAITS['clock']}.", "busy"
    if not execution.is_finished and execution.status != "suspended":
        return "", "busy"
    words = WORDS["execution"][execution.status]
    return f"The plan {words.phrase}.", words.tone


def _describe_verdict(suspension: SuspensionState) -> tuple[str, bool]:
    """Return the verdict in words, and whether it is an approval."""
    decision, words = suspension.decision, WORDS["question"]
    is_approved = decision is not None and decision.approved
    verdict = words["approved" if is_approved else "rejected"].word
    if suspension.status == "timed_out":
        return f"{words['timed_out'].word.capitalize()}: {verdict}", is_approved
    if suspension.status == "withdrawn" or decision is None:
        return words["withdrawn"].word.capitalize(), False
    return verdict.capitalize(), is_approved


def _describe_step(execution: ExecutionState, state: StepState) -> tuple[str, Tone]:
    words = WORDS["step"][state.status]
    phrase, tone = words.phrase, words.tone
    questions = [item.question for item in execution.open_suspensions if item.question.step_id == state.step.step_id]
    if state.outage is not None and describe_outage(execution, state.outage) is not None:
        phrase, tone = "waits for the provider", "busy"
    elif state.status == "suspended" and all(question.addressee == "clock" for question in questions):
        phrase = WAITS["clock"]
    elif state.status == "completed":
        shortfall = describe_shortfall(state)
        words = WORDS["step"]["partly" if state.failed_items or state.validation == "failed" else "completed"]
        parts = filter(None, (words.phrase, shortfall))
        phrase, tone = (", " if state.items is None else "; ").join(parts), words.tone
    number = list(execution.steps).index(state.step.step_id) + 1
    # A tool or a server may have written the error. It is quoted, so that nobody takes it for planwarden's own words.
    is_failed = phrase == "failed" and state.error_message
    why = f": {format_value(state.error_message, ERROR_CHARS)}" if is_failed else ""
    return f"Step {number} of {len(execution.steps)} {phrase}{why}.", tone
