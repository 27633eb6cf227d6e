"""The state of an execution in sentences, for its page and for the view that hosts draw."""

from collections.abc import Collection

from planwarden.agent.core.state import ExecutionState
from planwarden.server.views.card import GOAL_CHARS
from planwarden.server.views.decisions import describe_rejection
from planwarden.server.views.facts import escape_text, format_value
from planwarden.server.views.outages import describe_lost_patience
from planwarden.server.views.outcome import ERROR_CHARS
from planwarden.server.views.status_words import WAITS, WORDS

GOES_ON_FROM: frozenset[str] = frozenset({"failed", "rejected", "incomplete", "cancelled"})
"""Statuses of executions that ended before their plan was done."""


def build_title(execution: ExecutionState) -> str:
    """Return the first line of the goal, else what the plan is called; never empty."""
    first = next((line.strip() for line in (execution.goal or "").splitlines() if line.strip()), "")
    if not first and execution.saved_plan is not None:
        first = execution.saved_plan.name
    if not first and execution.steps:
        first = next(iter(execution.steps.values())).step.description
    return escape_text(first[:GOAL_CHARS]) or "A plan that is being written"


def describe_state(execution: ExecutionState) -> str:
    """Return its state as a sentence without its subject and its full stop."""
    if execution.status in ("new", "running") and execution.plan is None:
        return "is being planned"
    if execution.status == "suspended":
        return describe_wait({suspension.question.addressee for suspension in execution.open_suspensions})
    if execution.cancel_requested and not execution.is_finished:
        return "is being cancelled"
    if execution.status == "rejected" and (rejection := describe_rejection(execution)):
        return f"ended: {rejection}"
    if lost := describe_lost_patience(execution):
        return f"stopped: {lost}"
    phrase = WORDS["execution"][execution.status].phrase
    if execution.status == "failed" and execution.error_message:
        # The error may hold what a tool or a server wrote: quoted, it passes for no word of planwarden.
        return f"{phrase}: {format_value(execution.error_message, ERROR_CHARS)}"
    return phrase


def describe_wait(addressees: Collection[str]) -> str:
    """Return whose answer it waits for: a person's before every other."""
    return next((words for addressee, words in WAITS.items() if addressee in addressees), WAITS["clock"])


def describe_progress(execution: ExecutionState) -> str:
    """Return how many steps are over, such as `2 of 3 steps`; empty before there is a plan."""
    over = sum(found.status in ("completed", "skipped", "rehearsed") for found in execution.steps.values())
    count = len(execution.steps)
    return f"{over} of {count} step{'s' if count != 1 else ''}" if count else ""
