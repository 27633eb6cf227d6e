"""The state of an execution in sentences, and why it waits for the provider of a model, or gave up.

The sentences of a failure come from `planwarden.agent.models.provider.fault` and may quote the provider or a tool, so
they stand here as values, which cannot pass for words of planwarden.
"""

from collections.abc import Collection

from planwarden.agent.core.control.provider_waits import list_outages
from planwarden.agent.core.execution.state import ExecutionState, ModelOutage
from planwarden.server.views.decisions import describe_rejection
from planwarden.server.views.escaping import GOAL_CHARS, escape_text, format_value
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.server.views.status_words import WAITS, WORDS

ERROR_CHARS = 300
PATIENCE = "modelPatience"
"""The budget that is used up when a provider did not answer in time."""
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
        return f"{phrase}: {format_value(execution.error_message, ERROR_CHARS)}"
    return phrase


def describe_wait(addressees: Collection[str]) -> str:
    """Return whose answer it waits for: a person's before every other."""
    return next((words for addressee, words in WAITS.items() if addressee in addressees), WAITS["clock"])


def describe_progress(execution: ExecutionState) -> str:
    """Return how many steps are over, such as `2 of 3 steps`; empty before there is a plan."""
    over = sum(step.status in ("completed", "skipped", "rehearsed") for step in execution.steps.values())
    count = len(execution.steps)
    return f"{over} of {count} step{'s' if count != 1 else ''}" if count else ""


def describe_outage(execution: ExecutionState, outage: ModelOutage) -> str | None:
    """Return until when its prompt waits, and why; None while the prompt does not wait."""
    suspension = execution.suspensions.get(outage.suspension_id or "")
    if suspension is None or not suspension.is_open or suspension.question.expires_at is None:
        return None
    until = format_instant(to_utc(suspension.question.expires_at))
    error = format_value(outage.message, ERROR_CHARS)
    return f"waits for the provider until {until}, then attempt {outage.attempts + 1}; the last error was {error}"


def describe_next_attempt(execution: ExecutionState) -> str | None:
    """Return what `describe_outage` says about the prompt that is sent again first; None when none waits."""
    outages = list_outages(execution)
    if not outages:
        return None
    deadlines = {item.question.suspension_id: item.question.expires_at for item in execution.open_suspensions}
    waiting = [item for item in outages if deadlines.get(item.suspension_id or "") is not None]
    first = min(waiting, key=lambda item: deadlines[item.suspension_id or ""] or 0.0, default=None)
    return None if first is None else describe_outage(execution, first)


def describe_lost_patience(execution: ExecutionState) -> str | None:
    """Return how often the provider was asked before the execution gave up, and why; None if it did not."""
    outages = list_outages(execution)
    if execution.exhausted != PATIENCE or not outages:
        return None
    last = max(outages, key=lambda outage: outage.failed_at)
    times = "once" if last.attempts == 1 else f"{last.attempts} times"
    error = format_value(last.message, ERROR_CHARS)
    return f"the provider was asked {times} without an answer; the last error was {error}"
