"""What people and callers read about a model's provider that fails or is out of reach.

The sentences of a failure come from `planwarden.agent.models.provider.fault`. They may quote the provider, so they
stand here as values, which cannot pass for words of planwarden.
"""

from planwarden.agent.core.patience import list_outages
from planwarden.agent.core.state import ExecutionState, ModelOutage
from planwarden.server.views.facts import format_value
from planwarden.server.views.instants import format_instant, to_utc

ERROR_CHARS = 300
PATIENCE = "modelPatience"
"""The budget that is used up when a provider did not answer in time."""


def describe_outage(execution: ExecutionState, outage: ModelOutage) -> str | None:
    """Returns until when its prompt waits, and why; None while the prompt does not wait."""
    found = execution.suspensions.get(outage.suspension_id or "")
    if found is None or not found.is_open or found.question.expires_at is None:
        return None
    until = format_instant(to_utc(found.question.expires_at))
    error = format_value(outage.message, ERROR_CHARS)
    return f"waits for the provider until {until}, then attempt {outage.attempts + 1}; the last error was {error}"


def describe_next_attempt(execution: ExecutionState) -> str | None:
    """Returns what `describe_outage` says about the prompt that is sent again first; None when none waits."""
    outages = list_outages(execution)
    if not outages:
        return None
    deadlines = {found.question.suspension_id: found.question.expires_at for found in execution.open_suspensions}
    waiting = [found for found in outages if deadlines.get(found.suspension_id or "") is not None]
    first = min(waiting, key=lambda found: deadlines[found.suspension_id or ""] or 0.0, default=None)
    return None if first is None else describe_outage(execution, first)


def describe_lost_patience(execution: ExecutionState) -> str | None:
    """Returns how often the provider was asked before the execution gave up, and why; None if it did not."""
    outages = list_outages(execution)
    if execution.exhausted != PATIENCE or not outages:
        return None
    last = max(outages, key=lambda outage: outage.failed_at)
    times = "once" if last.attempts == 1 else f"{last.attempts} times"
    error = format_value(last.message, ERROR_CHARS)
    return f"the provider was asked {times} without an answer; the last error was {error}"
