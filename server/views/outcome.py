"""What became of a decision: one truthful sentence, from the state of the execution as it is now.

A decision is not its outcome. A call that was approved may fail, and a plan may fail after the call succeeded; neither
may stand under a sign of success.
"""

from typing import Literal

import msgspec

from planwarden.agent.core.state import ExecutionState, StepState, SuspensionState
from planwarden.server.views.decisions import describe_shortfall
from planwarden.server.views.facts import format_value
from planwarden.server.views.outages import describe_lost_patience, describe_next_attempt, describe_outage

Tone = Literal["good", "bad", "warn", "busy"]
ERROR_CHARS = 300

_WORST_FIRST: tuple[Tone, ...] = ("bad", "warn", "busy", "good")
_STEPS: dict[str, tuple[str, Tone]] = {
    "pending": ("has not begun", "busy"),
    "in_progress": ("is running", "busy"),
    "suspended": ("waits for another answer", "busy"),
    "completed": ("is completed", "good"),
    "rejected": ("did not run", "bad"),
    "failed": ("failed", "bad"),
    "skipped": ("was skipped", "bad"),
    "rehearsed": ("was only rehearsed", "warn"),
}
_ENDINGS: dict[str, tuple[str, Tone]] = {
    "completed": ("The plan is completed.", "good"),
    "rejected": ("The plan ended, because a part of it was rejected.", "bad"),
    "failed": ("The plan failed.", "bad"),
    "incomplete": ("The plan stopped, because a budget is used up.", "bad"),
    "cancelled": ("The plan was cancelled.", "bad"),
    "rehearsed": ("The plan was only rehearsed.", "warn"),
    "suspended": ("The plan waits for another answer.", "busy"),
}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a decision."""

    verdict: str
    """`Approved`, `Rejected`, `Nobody answered in time` or `Withdrawn`."""
    text: str
    """What followed, in sentences."""
    tone: Tone
    """`good` only if the step is done and nothing after it went wrong."""


def build_outcome(execution: ExecutionState, suspension: SuspensionState) -> Outcome | None:
    """Returns what became of the decision about a question; None while the question is open."""
    if suspension.is_open:
        return None
    verdict, is_approved = _describe_verdict(suspension)
    decided = execution.steps.get(suspension.question.step_id or "")
    steps = [] if decided is None else [_describe_step(execution, decided)]
    # The step of the decision alone does not say why the plan failed.
    steps += [
        _describe_step(execution, state)
        for state in execution.steps.values()
        if state.status == "failed" and state is not decided
    ][:1]
    ending = _describe_ending(execution)
    is_said = execution.status == "failed" and any(tone == "bad" for _, tone in steps)
    parts = [*steps, *([] if is_said else [ending])]
    tones = [tone for _, tone in (*parts, ending)]
    worst: Tone = next(tone for tone in _WORST_FIRST if tone in tones)
    text = " ".join(sentence for sentence, _ in parts if sentence)
    return Outcome(verdict=verdict, text=text, tone=worst if is_approved else "bad")


def _describe_ending(execution: ExecutionState) -> tuple[str, Tone]:
    """What the whole plan came to or waits for, as a sentence; empty while it runs."""
    lost = describe_lost_patience(execution)
    if lost is not None:
        return f"The plan stopped: {lost}.", "bad"
    is_clock = all(found.question.addressee == "clock" for found in execution.open_suspensions)
    if execution.status == "suspended" and is_clock:
        return f"The plan {describe_next_attempt(execution) or 'waits for a time'}.", "busy"
    return _ENDINGS.get(execution.status, ("", "busy"))


def _describe_verdict(suspension: SuspensionState) -> tuple[str, bool]:
    """The verdict in words, and whether it approved."""
    decision = suspension.decision
    is_approved = decision is not None and decision.approved
    if suspension.status == "timed_out":
        return f"Nobody answered in time: {'approved' if is_approved else 'rejected'}", is_approved
    if suspension.status == "withdrawn" or decision is None:
        return "Withdrawn", False
    return ("Approved" if is_approved else "Rejected"), is_approved


def _describe_step(execution: ExecutionState, state: StepState) -> tuple[str, Tone]:
    words, tone = _STEPS[state.status]
    if state.outage is not None and describe_outage(execution, state.outage) is not None:
        words, tone = "waits for the provider", "busy"
    elif state.status == "suspended" and _waits_for_clock(execution, state):
        words, tone = "waits for a time", "busy"
    elif words == "is completed":
        words, tone = _describe_done(state)
    number = list(execution.steps).index(state.step.step_id) + 1
    # The error may hold what a tool or a server wrote: quoted, it cannot pass for words of planwarden.
    why = f": {format_value(state.error_message, ERROR_CHARS)}" if words == "failed" and state.error_message else ""
    return f"Step {number} of {len(execution.steps)} {words}{why}.", tone


def _waits_for_clock(execution: ExecutionState, state: StepState) -> bool:
    asked = [item.question for item in execution.open_suspensions if item.question.step_id == state.step.step_id]
    return all(question.addressee == "clock" for question in asked)


def _describe_done(state: StepState) -> tuple[str, Tone]:
    """What a completed step did, with what it did not do."""
    shortfall = describe_shortfall(state)
    is_warning = state.failed_items or state.validation == "failed"
    joined = f"is completed{', ' if state.items is None else '; '}{shortfall}" if shortfall else "is completed"
    return joined, "warn" if is_warning else "good"
