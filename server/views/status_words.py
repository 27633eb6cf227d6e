"""The words, mark and tone of every status: of executions, steps, calls, questions, ticks and checks.

Everything that shows a status to a person uses these: terminal, pages, drawings, notifications, and views in hosts.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

from planwarden.agent.core.execution.state import ExecutionStatus

Tone = Literal["good", "bad", "warn", "busy", "dim"]
Mark = Literal[
    "none", "done", "partly", "busy", "asks", "waits", "failed", "unknown", "rejected", "skipped", "rehearsed", "note"
]
"""The name of a status's sign, and the CSS class of a step in a drawing."""
Kind = Literal["execution", "step", "call", "row", "item", "question", "event", "tick", "check"]


class Sign(NamedTuple):
    """How a mark is drawn."""

    text: str
    ascii: str
    """What is shown instead of `text` on a terminal without Unicode."""
    tone: Tone


SIGNS: Mapping[Mark, Sign] = {
    "none": Sign(" ", " ", "dim"),
    "done": Sign("✓", "+", "good"),
    "partly": Sign("◐", "%", "warn"),
    "busy": Sign("▸", ">", "busy"),
    "asks": Sign("?", "?", "busy"),
    "waits": Sign("·", ".", "dim"),
    "failed": Sign("✗", "x", "bad"),
    "unknown": Sign("!", "!", "bad"),
    "rejected": Sign("⊘", "x", "bad"),
    "skipped": Sign("–", "-", "dim"),
    "rehearsed": Sign("≈", "~", "warn"),
    "note": Sign("!", "!", "warn"),
}


class Words(NamedTuple):
    """How a status is shown to a person."""

    word: str
    """The status as a label, outside of a sentence."""
    mark: Mark
    phrase: str = ""
    """What follows `The plan` or `Step 2`; empty for statuses that are not used in sentences."""

    @property
    def tone(self) -> Tone:
        return SIGNS[self.mark].tone


_CALLS = {
    "proposed": Words("not made yet", "waits"),
    "decided": Words("approved, not made yet", "busy"),
    "running": Words("running", "busy"),
    "suspended": Words("waits for an answer", "asks"),
    "succeeded": Words("done", "done"),
    "failed": Words("failed", "failed"),
    "rejected": Words("rejected", "rejected"),
    "outcome_unknown": Words("nobody knows whether it happened", "unknown"),
    "rehearsed": Words("not made, only rehearsed", "rehearsed"),
}
_STEPS = {
    "pending": Words("not begun", "waits", "has not begun"),
    "in_progress": Words("running", "busy", "is running"),
    "suspended": Words("waiting", "asks", "waits for an answer"),
    "completed": Words("done", "done", "is completed"),
    "partly": Words("partly done", "partly", "is completed"),
    "rejected": Words("rejected", "rejected", "did not run"),
    "failed": Words("failed", "failed", "failed"),
    "skipped": Words("skipped", "skipped", "was skipped"),
    "rehearsed": Words("rehearsed", "rehearsed", "was only rehearsed"),
}
_RUNNING = Words("running", "busy", "runs")
WORDS: Mapping[Kind, Mapping[str, Words]] = {
    "execution": {
        "new": _RUNNING,
        "running": _RUNNING,
        "suspended": Words("waiting", "asks", "waits for an answer"),
        "planned": Words("planned", "waits", "is planned and has not begun"),
        "completed": Words("completed", "done", "is completed"),
        "failed": Words("failed", "failed", "failed"),
        "rejected": Words("rejected", "rejected", "ended, because a part of it was rejected"),
        "cancelled": Words("cancelled", "skipped", "was cancelled"),
        "incomplete": Words("incomplete", "failed", "stopped, because a budget is used up"),
        "rehearsed": Words("rehearsed", "rehearsed", "was rehearsed: nothing was changed"),
    },
    "step": _STEPS,
    "call": _CALLS,
    # A row also counts as `rejected` if an answer approved only other rows, so it is called left out.
    "row": {**_CALLS, "rejected": Words("left out", "rejected")},
    "item": {**_CALLS, "pending": _STEPS["pending"], "skipped": _STEPS["skipped"]},
    "question": {
        "approved": Words("approved", "done"),
        "rejected": Words("rejected", "rejected"),
        "timed_out": Words("nobody answered in time", "failed"),
        "withdrawn": Words("withdrawn", "skipped"),
    },
    # Types of observations in a history; types that are missing here are shown by their own names.
    "event": {
        "AGENT_SUSPENDED": Words("question", "asks"),
        "AGENT_RESUMED": Words("answer", "none"),
        "SUSPENSION_TIMEOUT": Words("nobody answered in time", "failed"),
        "STEP_COMPLETED": Words("step completed", "done"),
        "STEP_FAILED": Words("step failed", "failed"),
        "STEP_REJECTED": Words("step rejected", "rejected"),
        "VALIDATION_FAILED": Words("validation failed", "note"),
        "EXECUTION_COMPLETED": Words("plan completed", "done"),
        "EXECUTION_FAILED": Words("plan failed", "failed"),
        "EXECUTION_REJECTED": Words("plan ended by a rejection", "rejected"),
        "EXECUTION_CANCELLED": Words("plan cancelled", "skipped"),
    },
    "tick": {
        "started": Words("started", "done"),
        "skipped": Words("skipped", "waits"),
        "missed": Words("missed", "note"),
        "failed": Words("did not start", "failed"),
    },
    "check": {
        "ok": Words("ok", "done"),
        "off": Words("off", "waits"),
        "warning": Words("warning", "note"),
        "broken": Words("broken", "failed"),
    },
}
WAITS: Mapping[str, str] = {
    "human": "waits for a person",
    "caller": "waits for the assistant",
    "clock": "waits for a time",
}
"""By addressee: whom a suspended execution, step or call waits for."""
DECIDERS: Mapping[str, str] = {
    "client": "a person (a form of the client is enough)",
    "human": "a person, in the inbox or at a terminal",
    "signed": "a person with a key, or somebody other than the owner",
    "second": "a person other than the owner",
}
"""Who can decide, by the assurance that an approval needs."""
STATUSES = cast(
    "Mapping[str, ExecutionStatus]",
    {words.word: status for status, words in WORDS["execution"].items() if status != "new"},
)
"""The words by which people choose executions, each with the status that it means."""
