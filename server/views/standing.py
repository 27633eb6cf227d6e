"""How an execution stands, in the words of its page and of the view that hosts draw."""

from planwarden.agent.core.state import ExecutionState
from planwarden.server.views.decisions import describe_rejection
from planwarden.server.views.facts import escape_text, format_value
from planwarden.server.views.outcome import ERROR_CHARS
from planwarden.server.views.voices import GOAL_CHARS

GOES_ON_FROM: frozenset[str] = frozenset({"failed", "rejected", "incomplete", "cancelled"})
"""Statuses of executions that ended before their plan was done."""
_WORDS = {
    "running": "runs",
    "planned": "is planned and has not begun",
    "completed": "is completed",
    "failed": "failed",
    "rejected": "ended, because a part of it was rejected",
    "incomplete": "stopped before its end",
    "cancelled": "was cancelled",
    "rehearsed": "was rehearsed: nothing was changed",
}


def build_title(execution: ExecutionState) -> str:
    """Returns the first line of the goal, else what the plan is called; never empty."""
    first = next((line.strip() for line in (execution.goal or "").splitlines() if line.strip()), "")
    if not first and execution.saved_plan is not None:
        first = execution.saved_plan.name
    if not first and execution.steps:
        first = next(iter(execution.steps.values())).step.description
    return escape_text(first[:GOAL_CHARS]) or "A plan that is being written"


def describe_state(execution: ExecutionState) -> str:
    """Returns how it stands, as a sentence without its subject and its full stop."""
    if execution.status in ("new", "running") and execution.plan is None:
        return "is being planned"
    if execution.status == "suspended":
        addressees = {found.question.addressee for found in execution.open_suspensions}
        whom = "a person" if "human" in addressees else "the assistant" if "caller" in addressees else "a time"
        return f"waits for {whom}"
    words = _WORDS.get(execution.status, "runs")
    if execution.cancel_requested and not execution.is_finished:
        return "is being cancelled"
    if execution.status == "rejected" and (rejection := describe_rejection(execution)):
        return f"ended: {rejection}"
    if execution.status == "failed" and execution.error_message:
        # The error may hold what a tool or a server wrote: quoted, it passes for no word of planwarden.
        return f"{words}: {format_value(execution.error_message, ERROR_CHARS)}"
    return words


def find_tone(execution: ExecutionState) -> str:
    """Returns `good`, `bad`, `busy` or `plain`; `good` only for a plan that is done."""
    if execution.status == "completed":
        return "good"
    if execution.status in GOES_ON_FROM:
        return "bad"
    return "busy" if execution.status == "suspended" else "plain"


def describe_progress(execution: ExecutionState) -> str:
    """Returns how many steps are over, such as `2 of 3 steps`; empty before there is a plan."""
    over = sum(found.status in ("completed", "skipped", "rehearsed") for found in execution.steps.values())
    count = len(execution.steps)
    return f"{over} of {count} step{'s' if count != 1 else ''}" if count else ""
